"""Orders that the papers on partial local shuffle report for accuracy, in trainings of seconds on
scikit-learn's digits.

None of them is put in: every run trains a network on emulated ranks. Seeds are fixed, differences
are between runs of the same seed, and an order counts only where it is beyond the 95 % interval.
What comes out otherwise than in the papers is told in docs/model.md.
"""

import pytest
import torch

from simshuffle.studies.training.summary import estimate
from simshuffle.train.emulate import train_run
from simshuffle.train.run import Run

SEEDS = range(4)
BASE = {
    # 1,440 training samples, so that all shards are equal
    "data": {"kind": "digits", "flat": True, "test_share": 0.1987},
    "model": {"kind": "mlp"},
    "training": {
        "epochs": 40,
        "learning_rate": 0.2,
        "warmup_epochs": 5,
        "evaluate_every": 40,
        "statistics": ["own", "pooled"],
    },
}
GLOBAL, LOCAL = {"kind": "global_shuffle"}, {"kind": "local_shuffle"}


def partial(fraction):
    return {"kind": "partial_local_shuffle", "exchange_fraction": fraction}


@pytest.fixture(scope="module")
def gap():
    """The difference of the accuracies of two strategies, as an estimate over seeds; each run is
    trained once."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    done = {}

    def accuracy(exchange, world_size, seed, partition, batch_norm, statistics):
        key = (repr(exchange), world_size, seed, partition, batch_norm)
        if key not in done:
            values = {
                "exchange": exchange,
                "world_size": world_size,
                "seed": seed,
                "partition": {"kind": partition},
            }
            training = BASE["training"] | {"batch_norm": batch_norm}
            done[key] = train_run(
                Run.model_validate(BASE | values | {"training": training}), None, "cpu"
            ).epochs.iloc[-1]
        return float(done[key][f"{statistics}_accuracy"])

    def difference(
        one, other, world_size=180, partition="random", batch_norm="per_rank", statistics="own"
    ):
        rest = (partition, batch_norm, statistics)
        return estimate(
            [
                accuracy(one, world_size, seed, *rest) - accuracy(other, world_size, seed, *rest)
                for seed in SEEDS
            ]
        )

    yield difference
    torch.set_num_threads(threads)


def test_local_shuffle_loses_accuracy_where_shards_are_small(gap):
    assert gap(LOCAL, GLOBAL).high < -0.02


def test_exchanging_a_third_closes_most_of_the_gap(gap):
    assert gap(partial(0.3), LOCAL).low > 0.02
    assert gap(partial(0.3), GLOBAL).mean > gap(LOCAL, GLOBAL).mean / 3
    assert gap(partial(0.3), GLOBAL).low < 0.005, "it is not better than global shuffle"


def test_the_loss_is_in_the_statistics_of_batch_norm(gap):
    own, pooled = gap(LOCAL, GLOBAL), gap(LOCAL, GLOBAL, statistics="pooled")
    assert pooled.mean > own.mean / 2
    without = gap(LOCAL, GLOBAL, batch_norm="none")
    assert abs(without.mean) < 0.01


def test_shards_sorted_by_label_ruin_local_shuffle_and_a_tenth_exchanged_heals_it(gap):
    assert gap(LOCAL, GLOBAL, 90, "sorted").high < -0.4
    assert gap(partial(0.1), GLOBAL, 90, "sorted").low > -0.03


def test_pairs_that_exchange_everything_swap_their_shards_and_mix_nothing(gap):
    # in one exchange two samples of a shard stay together with probability (1 - Q)^2 + Q^2 under
    # pairing, which is 1 at Q = 1
    pair = {"kind": "importance_pair", "exchange_fraction": 1.0}
    assert gap(pair, partial(1.0), 90, "sorted").high < -0.3
