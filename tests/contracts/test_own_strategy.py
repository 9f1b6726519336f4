"""A strategy that is not part of the package: made known in one line, planned, simulated, and held
to what it says."""

from typing import Any, Literal

import numpy as np
import pytest

from simshuffle.errors import ScenarioError
from simshuffle.job.plan.epochs import plan_epochs, sample_nbytes
from simshuffle.job.scenario.scenario import Scenario, load_scenario
from simshuffle.job.sim.simulate import simulate
from simshuffle.report import report
from simshuffle.workload.exchange import (
    EpochContext,
    ExchangePlan,
    ExchangeSchedule,
    PartialLocalShuffle,
    register,
)
from simshuffle.workload.exchange.sending import ShardHolding
from tests.small import seconds, small


@register
class OwnRing(ShardHolding):
    """Rank r sends to rank r + 1, Q b samples an iteration; nothing is drawn."""

    kind: Literal["own_ring"]

    def plan(self, context: EpochContext) -> ExchangePlan:
        """The first samples of each rank's order go to the next rank."""
        sample = context.shards.first(self.quota(context))
        after = np.roll(np.arange(sample.shape[1]), -1)
        iteration = self.iteration_of_steps(context, len(sample))
        return ExchangePlan(
            sample,
            np.broadcast_to(after, sample.shape),
            iteration,
            self.schedule.messages(iteration),
        )


def ring(**schedule: Any) -> Scenario:
    """Every rank has 100 samples in 10 iterations: Q = 0.2 is 2 samples an iteration."""
    exchange = {"kind": "own_ring", "exchange_fraction": 0.2, "schedule": schedule}
    return small(workload__exchange=exchange)


def test_a_scenario_takes_it_by_kind_by_text_and_as_an_object():
    strategy = OwnRing(kind="own_ring", exchange_fraction=0.2)
    for given in ("own_ring:exchange_fraction=0.2", strategy, strategy.model_dump(mode="json")):
        assert small(workload__exchange=given).workload.exchange == strategy
    assert ring().label() == "own_ring-0.2 streamlined @8"


def test_it_is_written_and_read_back_and_swept(tmp_path):
    scenario = ring(payload="encoded")
    file = tmp_path / "ring.yaml"
    file.write_text(scenario.to_yaml())
    assert load_scenario(file) == scenario
    swept = scenario.with_values({"sweep": {"world_size": [2, 4]}})
    assert list(swept.runs()) == ["own_ring-0.2 streamlined @2", "own_ring-0.2 streamlined @4"]


def test_samples_go_round_the_ring():
    scenario = ring()
    plan = next(plan_epochs(scenario, sample_nbytes(scenario))).exchange
    assert plan.samples_moved == 8 * 20
    assert plan.target[0].tolist() == [1, 2, 3, 4, 5, 6, 7, 0]


def test_it_takes_part_in_the_simulation():
    """Without barriers, decoding and other work, two samples are read from the SSD, one after the
    other, and written: 80 us and 100 kB at 3 GB/s each, then 200 kB at 1 GB/s."""
    free = dict.fromkeys(("read", "zero_buffer", "decode", "pickle", "write", "remove"), "0 s")
    timeline = simulate(ring(barriers="none", payload="encoded", **free))
    table = report.epochs(timeline).iloc[0]
    assert table["nbytes_peer"] == 8 * 20 * 100e3
    worked = seconds(timeline, "exchange")
    expected = 20 * (80e-6 + 100e3 / 3e9) + 10 * 200e3 / 1e9
    # the messages of the last iteration have nothing to hide behind: 1.3 us and 100 kB at 10 GB/s
    assert all(expected <= value < expected + 30e-6 for value in worked.values())


def test_permutations_that_nobody_draws_are_not_charged():
    """A random partner for every sample is: 8 ranks times 1 ms, 20 times an epoch."""
    free, dear = (simulate(ring(draw=draw)) for draw in ("0 s", "1 ms"))
    assert free.phases.equals(dear.phases)

    def partial(draw: str) -> Any:
        exchange = {
            "kind": "partial_local_shuffle",
            "exchange_fraction": 0.2,
            "schedule": {"draw": draw, "barriers": "none"},
        }
        return seconds(simulate(small(workload__exchange=exchange)), "exchange")

    before, after = partial("0 s"), partial("1 ms")
    for rank in range(8):
        assert after[rank] - before[rank] == pytest.approx(20 * 8e-3, rel=0.01)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("partner_rule", "random_pairs"),
        ("partner_lifetime", "epoch"),
        ("partner_scope", "host"),
        ("partners_per_epoch", 2),
        ("rank_importance", "sum"),
        ("least_difference", 0.1),
    ],
)
def test_keys_for_partners_that_it_does_not_use_are_refused(key, value):
    with pytest.raises(ScenarioError) as caught:
        ring(**{key: value})
    (problem,) = caught.value.problems
    assert problem.path == f"workload.exchange.schedule.{key}"
    assert (problem.rule, problem.remedy) == ("is not a known key", "Leave it out.")
    # those that find partners by a rule take it
    ExchangeSchedule.model_validate(
        {"partner_rule": "importance_sorted", "partner_lifetime": "epoch", key: value}
    )


def test_its_own_keys_are_checked_like_any_other():
    with pytest.raises(ScenarioError) as caught:
        small(workload__exchange={"kind": "own_ring", "exchange_fraction": 2})
    assert caught.value.problems[0].path == "workload.exchange.exchange_fraction"


def test_a_kind_is_registered_once():
    with pytest.raises(ValueError, match="'own_ring' already"):
        register(OwnRing)
    with pytest.raises(ValueError, match="'partial_local_shuffle' already"):
        register(PartialLocalShuffle)
    with pytest.raises(ValueError, match="needs a kind"):
        register(ShardHolding)
