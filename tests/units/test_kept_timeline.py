"""Of which ranks a run keeps its timeline: all, a sample, or none; what is reported is the same."""

import gc
import json
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

import simshuffle
from simshuffle.errors import InputError
from simshuffle.job.sim import cell
from simshuffle.job.sim.simulate import simulate, simulate_epochs
from simshuffle.report import kept_phases, report
from simshuffle.report.timeline import PHASES, Timeline
from simshuffle.studies.simulation import study
from simshuffle.studies.simulation.verb import RunOptions
from simshuffle.studies.verify import verify
from simshuffle.study import engine, long_table
from simshuffle.study.executors import SerialExecutor
from simshuffle.study.store import Disk

KINDS: tuple[kept_phases.KeptRanks, ...] = ("full", "ranks", "none")


def scenario(**values: Any) -> simshuffle.Scenario:
    return simshuffle.load_scenario(
        "quickstart",
        {
            "sweep": {},
            "world_size": 16,
            "epochs": 2,
            "workload.dataset.num_samples": 3200,
            "workload.exchange": "partial_local_shuffle:exchange_fraction=0.3",
            **values,
        },
    )


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    return simulate(scenario(epochs=1))


@pytest.mark.parametrize("seeds", [1, 2])
def test_what_is_reported_does_not_depend_on_what_is_kept(seeds, tmp_path):
    found = {kind: simshuffle.run(scenario(), seeds=seeds, timeline=kind) for kind in KINDS}
    full = found["full"]
    for kind, result in found.items():
        assert result.meta.get("timeline", "full") == kind
        result.save(tmp_path / kind, draw=False)
        for name in ("epochs.csv", "breakdown.csv", "sources.csv"):
            assert (tmp_path / kind / name).read_bytes() == (tmp_path / "full" / name).read_bytes()
        for name in ("iterations", "links"):
            pd.testing.assert_frame_equal(result.tables[name], full.tables[name])
        assert simshuffle.read(tmp_path / kind).meta == result.meta
    some, every = found["ranks"].tables["timeline"], full.tables["timeline"]
    assert 0 < len(some) < len(every)
    keys = list(every.columns)
    assert len(some.merge(every, on=keys)) == len(some)
    assert found["none"].tables["timeline"].empty
    assert list(found["none"].tables["timeline"]) == keys


def test_the_sample_has_ranks_that_lie_evenly_and_the_extreme_ones():
    seconds = np.zeros((3, 80, len(PHASES)))
    seconds[1, :, PHASES.index("forward")] = 1.0
    seconds[2, 33, PHASES.index("backward")] = 2.0
    seconds[2, 34, PHASES.index("forward")] = -0.5
    seconds[1, :, PHASES.index("wait_allreduce")] = 1.0
    seconds[1, 51, PHASES.index("wait_exchange")] = 0.5
    seconds[1, 52, PHASES.index("wait_allreduce")] = 0.5
    seconds[1, 7, PHASES.index("io")] = 9.0
    assert kept_phases.sample_ranks(seconds) == [0, 10, 20, 30, 33, 34, 40, 50, 51, 52, 60, 70]
    assert kept_phases.sample_ranks(np.ones((2, 3, len(PHASES)))) == [0, 1, 2]


def test_means_by_iteration_add_up_to_the_seconds_of_the_epoch(timeline):
    phases = timeline.phases
    table = kept_phases.iteration_means(phases, kept_phases.seconds_by_rank(phases))
    sums = table.groupby("phase", observed=False)["mean_s"].sum()
    whole = report.phase_seconds(timeline).iloc[0]
    for phase in PHASES:
        assert sums[phase] == pytest.approx(whole[phase], rel=1e-12, abs=1e-15)
    lasting = phases.assign(seconds=phases["end_s"] - phases["start_s"])
    each = lasting.groupby(["iteration", "phase", "rank"], observed=True)["seconds"].sum()
    for row in table.itertuples():
        of = each[row.iteration, row.phase].reindex(range(16), fill_value=0.0)
        assert (row.least_s, row.most_s) == pytest.approx((of.min(), of.max()), abs=1e-15)
    assert len(table) == len(each.groupby(["iteration", "phase"], observed=True).size())


def test_without_a_word_all_ranks_are_kept_as_long_as_they_are_few(monkeypatch):
    single = scenario()
    rows = 8 * 16 * 2 * single.workload.iterations(16)
    monkeypatch.setattr(study, "MAX_FULL_ROWS", rows)
    assert study.request(RunOptions(scenario=single))[1].values.timeline == "full"
    assert "timeline" not in study.request(RunOptions(scenario=single))[1].asked
    assert study.request(RunOptions(scenario=single, seeds=2))[1].asked["timeline"] == "ranks"
    monkeypatch.setattr(study, "MAX_FULL_ROWS", rows - 1)
    assert study.request(RunOptions(scenario=single))[1].asked["timeline"] == "ranks"
    assert "timeline" not in study.request(RunOptions(scenario=single, timeline="full"))[1].asked


def test_a_kept_sample_is_not_taken_for_all_ranks_and_all_serve_as_a_sample(tmp_path):
    store, done = Disk(tmp_path), []

    class Counting(SerialExecutor):
        def do(self, cells: Any, store: Any, watch: Any) -> Iterator[str]:
            done.extend(cells)
            return super().do(cells, store, watch)

    def run(kind: kept_phases.KeptRanks) -> int:
        before = len(done)
        asked = study.request(RunOptions(scenario=scenario(), timeline=kind))
        engine.run(*asked, Counting(), store)
        return len(done) - before

    assert [run(kind) for kind in ("none", "ranks", "ranks", "full", "ranks", "none", "full")] == [
        *(1, 1, 0, 1, 0, 0, 0)
    ]


@pytest.mark.parametrize("kind", ["ranks", "none"])
def test_a_result_with_a_part_of_the_timeline_is_verified(kind, tmp_path):
    folder = simshuffle.run(scenario(), timeline=kind).save(tmp_path / "r", draw=False)
    assert verify(folder).is_identical
    meta = json.loads((folder / "meta.json").read_text())
    meta["timeline"] = {"ranks": "none", "none": "full"}[kind]
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(InputError, match=r"timeline\.parquet: must fit the other files"):
        simshuffle.read(folder)
    meta["timeline"] = "half"
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(InputError, match=r"meta\.json: timeline"):
        simshuffle.read(folder)


def test_another_word_is_refused():
    with pytest.raises(InputError, match="--timeline: must be one of full, ranks, none"):
        simshuffle.run(scenario(), timeline="half")  # type: ignore[arg-type]


def test_what_is_printed_says_what_is_kept():
    found = {kind: str(simshuffle.run(scenario(epochs=1), timeline=kind)) for kind in KINDS}
    assert "--timeline" not in found["full"]
    assert "a sample of the ranks" in found["ranks"]
    assert "--timeline full keeps every rank" in found["ranks"]
    assert "timeline.parquet is empty" in found["none"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_is_not_held_while_the_next_one_is_simulated(kind, monkeypatch):
    monkeypatch.setattr(long_table, "ROWS_AT_ONCE", 100)
    held: list[Any] = []

    def epochs(*given: Any, **more: Any) -> Iterator[Timeline]:
        for timeline in simulate_epochs(*given, **more):
            gc.collect()
            assert [ref() for ref in held if ref() is not None] == []
            held.extend(map(weakref.ref, (timeline, timeline.phases, timeline.links)))
            yield timeline
            del timeline

    monkeypatch.setattr(cell, "simulate_epochs", epochs)
    outcome = cell.RunCell(scenario(epochs=3).to_dict(), "x", timeline=kind).run(lambda _: None)
    assert len(held) == 9
    assert len(outcome.tables["iterations"])


def test_the_simulation_leaves_nothing_of_an_epoch_behind():
    from simshuffle.job.sim.epoch import Epoch

    def alive() -> int:
        # not isinstance, which asks objects of other packages for their class, and one warns then
        return sum(type(each) is Epoch for each in gc.get_objects())

    gc.collect()
    others = alive()  # that other tests have left, in tracebacks for instance
    gc.disable()
    try:
        for _ in simulate_epochs(scenario(epochs=3)):
            assert alive() - others <= 1
    finally:
        gc.enable()
