"""On how many samples a rank's statistics rest: by hand, in the record of a training, in tables, in
the report and in the figure. Almost nothing is trained here."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from torch import nn
from torch.utils.data import TensorDataset

from simshuffle.report.canvas import save
from simshuffle.studies.training.figures import figures
from simshuffle.studies.training.running_statistics import (
    count_remembered_epochs,
    effective_number,
    share_after_epoch,
)
from simshuffle.studies.training.summary import fit_loss_curve, losses_against_global, summary
from simshuffle.studies.training.tables import collect_tables
from simshuffle.studies.training.text import parts
from simshuffle.studies.training.wording import join_report
from simshuffle.train import emulate
from simshuffle.workload.exchange import PairSchedule, PartialLocalShuffle
from tests.drawn import laid_out, rows_of
from tests.mixing import effective_samples, owners, plan_exchanges
from tests.trained import description, record, run_outcome

KEPT = 0.81


def halves(selection):
    """Two ranks with four samples each swap two of them after every one of three epochs."""
    strategy = PartialLocalShuffle(
        kind="partial_local_shuffle",
        exchange_fraction=0.5,
        selection=selection,
        schedule=PairSchedule(partner_rule="random_pairs"),
    )
    return plan_exchanges(strategy, num_samples=8, world_size=2, batch_size=4, epochs=3)


def counted(recorded, kept):
    """The number by its definition, one sample of one rank after the other."""
    weight = defaultdict(float)
    of = owners(recorded)[:-1]
    for ago, owner in enumerate(reversed(of)):
        for sample, rank in enumerate(owner):
            weight[int(rank), sample] += kept**ago
    each = [[w for (rank, _), w in weight.items() if rank == one] for one in (0, 1)]
    return np.mean([sum(of_rank) ** 2 / sum(w * w for w in of_rank) for of_rank in each])


def test_of_the_oldest_by_hand():
    """In the third epoch each rank has the four with which the other one began. Two it had in the
    first epoch alone, two in the first two, two in the last two, and two in the last."""
    a = KEPT
    weights = [a**2, a**2 + a, a + 1, 1]
    expected = (2 * sum(weights)) ** 2 / (2 * sum(w * w for w in weights))
    assert effective_samples(halves("oldest"), a) == pytest.approx(expected)
    at_random = halves("random")
    assert effective_samples(at_random, a) == pytest.approx(counted(at_random, a))
    assert effective_samples(at_random, a) < expected


def test_epochs_that_are_forgotten_do_not_count():
    assert [count_remembered_epochs(kept) for kept in (0.0, 1e-7, 0.1, 0.5)] == [1, 1, 7, 20]
    of = owners(halves("random"))
    assert effective_number(of[-3:], 2, 1e-3) == pytest.approx(
        effective_number(of, 2, 1e-3), rel=1e-5
    )


# ------------------------------------------------------------------------------------ of a training

RANKS, SAMPLES, EPOCHS = 4, 48, 3


def trained(strategy, **training):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(SAMPLES, 3), torch.arange(SAMPLES) % 2)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    return emulate(
        network,
        data,
        data,
        strategy=strategy,
        world_size=RANKS,
        local_batch_size=4,
        epochs=EPOCHS,
        statistics=["own"],
        evaluate_every=EPOCHS,
        **training,
    )


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("strategy", "training", "momentum", "passes"),
    [
        ("partial_local_shuffle:exchange_fraction=0.5", {}, 0.1, 1),
        ("partial_local_shuffle:exchange_fraction=0.5", {"importance_pass": "train"}, 0.1, 1),
        ("importance_exchange:exchange_fraction=0.5", {"statistics_momentum": 0.3}, 0.3, 1),
        ("importance_exchange:exchange_fraction=0.5", {"importance_pass": "train"}, 0.1, 2),
    ],
)
def test_a_training_tells_it_from_its_shards(strategy, training, momentum, passes):
    """Three iterations an epoch; a pass in training mode shows statistics the shard once more."""
    found = trained(strategy, **training)
    expected = effective_samples(found.plans, share_after_epoch(momentum, 3 * passes))
    assert found.description["effective_samples"] == pytest.approx(expected)


@pytest.mark.usefixtures("one_thread")
def test_without_exchange_it_is_the_shard_and_with_global_shuffle_more():
    of = {
        name: trained(name).description["effective_samples"]
        for name in ("local_shuffle", "global_shuffle")
    }
    assert of["local_shuffle"] == pytest.approx(SAMPLES / RANKS)
    assert SAMPLES / RANKS < of["global_shuffle"] < SAMPLES


@pytest.mark.usefixtures("one_thread")
def test_ranks_that_normalise_together_rest_on_the_samples_of_all_of_them():
    """Four ranks with 12 samples each: two groups of two with 24, four of one with 12. What a group
    exchanges within itself changes nothing; with others, more than its own count."""
    of_two, of_one = (
        {"batch_norm": "sync", "sync_ranks": 2},
        {"batch_norm": "sync", "sync_ranks": 1},
    )
    found = trained("local_shuffle", **of_two).description
    assert (found["effective_samples"], found["sync_ranks"]) == (pytest.approx(24.0), 2)
    assert trained("local_shuffle", **of_one).description["effective_samples"] == pytest.approx(
        12.0
    )
    record = trained("partial_local_shuffle:exchange_fraction=0.5", **of_two)
    halves = [owner // 2 for owner in owners(record.plans)[:-1]]
    kept = share_after_epoch(0.1, 3)
    expected = effective_number(halves, 2, kept)
    assert record.description["effective_samples"] == pytest.approx(expected)
    assert 24.0 < expected < effective_number(halves, 1, kept) * 48.0


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("batch_norm", ["sync", "none"])
def test_ranks_without_statistics_of_their_own_have_no_such_number(batch_norm):
    assert trained("local_shuffle", batch_norm=batch_norm).description["effective_samples"] is None


# --------------------------------------------------------------------------- tables, report, figure

N = {"global": 150.0, "local": 16.0, "partial": 24.0, "IS": 20.0}
SLOPE = 1.2
OFF = {"IS": 0.01}
"""IS loses a point more than the curve says."""


def tables():
    """Two seeds of four settings, the second with one sample more each."""
    records, descriptions = {}, {}
    for seed in (0, 1):
        for name, n in N.items():
            lost = SLOPE * (1 / (n + 0.5) - 1 / 150.5) + OFF.get(name, 0.0) if n < 150 else 0.0
            made = record(0.8 - lost + 0.001 * seed * (name == "local"))
            run = f"{name}{seed}"
            records[run] = replace(made, description={"effective_samples": n + seed})
            fraction = {"global": None, "local": 0.0}.get(name, 0.1)
            descriptions[run] = description(name, 1024, seed, fraction)
    return collect_tables(descriptions, {name: run_outcome(of) for name, of in records.items()})


def test_the_table_has_the_mean_over_seeds():
    of = summary(tables().runs)
    assert set(of["statistics"]) > {"own"}
    for name, n in N.items():
        assert (of.loc[of["strategy"] == name, "effective_samples"] == n + 0.5).all()


def test_the_curve_goes_through_global_shuffle():
    """Of 1/n without a constant: c = sum x y / sum x^2, and what is left."""
    of = summary(tables().runs)
    found = fit_loss_curve(losses_against_global(of))
    n = np.array([16.5, 24.5, 20.5])
    x = 1 / n - 1 / 150.5
    y = SLOPE * x + [-0.0005, 0, 0.01]
    slope = (x @ y) / (x @ x)
    assert (found.settings, found.slope) == (3, pytest.approx(slope))
    assert found.residual == pytest.approx(np.sqrt(np.mean((y - slope * x) ** 2)))
    assert found.spread == pytest.approx(np.sqrt(np.mean(y**2)))
    assert (found.worst_row["strategy"], found.worst_excess) == (
        "IS",
        pytest.approx(0.01 + (SLOPE - slope) * x[2]),
    )
    assert fit_loss_curve(losses_against_global(of[of["strategy"] != "IS"])) is None
    assert not len(losses_against_global(of[of["statistics"] == "pooled"]))


def test_the_report_has_n_and_names_who_loses_more_than_it_says():
    said = " ".join(join_report(parts(tables(), {"study": "mine"})).split())
    assert " 16.5 " in said and "150 " in said
    assert "IS 0.1 at M = 1024 loses 0.7 points more than this c explains." in said


def test_the_figure_shows_what_the_table_has(tmp_path):
    chart = figures(tables())["accuracy_samples"]
    figure = laid_out(chart)
    of = losses_against_global(summary(tables().runs)).set_index("strategy")
    points = rows_of(chart, "point")
    assert len(points) == len(of) == 4
    ax = figure.axes[0]
    drawn = [
        line for line in ax.lines if line.get_marker() in "sv^o" and len(line.get_xdata()) == 1
    ]
    shown = sorted((*line.get_xdata(), *line.get_ydata()) for line in drawn)
    np.testing.assert_allclose(sorted(zip(points["x"], points["y"], strict=True)), shown)
    expected = sorted(zip(of["effective_samples"], 100 * of["loss"], strict=True))
    np.testing.assert_allclose(shown, expected)
    bars = {
        round(float(segment[0][0]), 6): segment[:, 1]
        for bars in ax.collections
        if isinstance(bars, LineCollection)
        for segment in bars.get_segments()
    }
    local = of.loc["local"]
    np.testing.assert_allclose(bars[16.5], [100 * local["loss_low"], 100 * local["loss_high"]])
    assert {path.suffix for path in save(figure, tmp_path / "samples")} == {".png", ".pdf"}


def test_an_axis_of_nearly_equal_numbers_has_ticks(monkeypatch):
    """Of large shards: 256 samples with local shuffle, 273 with global."""
    for name, n in {"global": 273.0, "local": 256.0, "partial": 257.6, "IS": 258.0}.items():
        monkeypatch.setitem(N, name, n)
    ax = laid_out(figures(tables())["accuracy_samples"]).axes[0]
    ax.figure.canvas.draw()
    within = [tick for tick in ax.get_xticks() if 256 <= tick <= 273]
    assert len(within) >= 3
