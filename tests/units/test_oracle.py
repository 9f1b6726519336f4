"""The oracle: points that add up, what is recommended, what is refused, tables, figures, verify."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from simshuffle.cli import main
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.uncertainty.residuals import residuals
from simshuffle.studies.oracle import cell as cells
from simshuffle.studies.oracle import machine as points
from simshuffle.studies.oracle import request as requests
from simshuffle.studies.oracle import tables as recommend
from simshuffle.studies.oracle import text, verb
from simshuffle.studies.oracle.figures import memory_chart, shown_points, times_chart
from simshuffle.studies.oracle.machine import FRACTIONS, OracleMachine
from simshuffle.studies.oracle.request import request
from simshuffle.studies.oracle.study import STUDY
from simshuffle.studies.oracle.tables import LOOP, MEMORY, STORED
from simshuffle.studies.oracle.verb import OracleOptions
from simshuffle.study import engine
from simshuffle.workload.parallelism import Data, GpuMemory, Node, Step
from tests.drawn import faults, laid_out, rows_of, words
from tests.small import small

SIZE = {
    "workload__model": "vgg16",
    "workload__exchange": "partial_local_shuffle:exchange_fraction=0.3",
    "cluster__host__gpus": 2,
    "cluster__host__hcas": 1,
    "cluster__host__pcie_slots": 1,
}
SAYS = {"what": "a network on a machine", "assumptions": ["nothing"]}
GIB = 2**30


def tiny(**values):
    """16 hosts of two GPUs."""
    return small(**{**SIZE, **values})


@pytest.fixture(scope="module")
def result():
    """All strategies on 1 to 8 GPUs, with two simulated and one measured."""
    options = OracleOptions(
        scenario=tiny(),
        world_sizes=(1, 2, 8),
        budget_memory="3 GiB",
        simulate=(("data", 8), ("data+spatial", 8)),
    )
    return engine.run(STUDY, request(options, [("data", 8, 20.0)]))


def row(size, name, seconds, **more):
    """A point whose loop never waits for samples."""
    about = {"world_size": size, "strategy": name, "kind": name, "ways": 1, "replicas": size}
    about |= {"hosts": size, "group_batch": 1, "iterations": 10, "feasible": True, "why_not": ""}
    spent = dict.fromkeys((*LOOP, "input_s", "hidden_s", "io_s"), 0.0)
    spent |= {"compute_s": seconds, "loop_s": seconds, "epoch_s": seconds}
    spent |= {"epoch_low_s": 0.9 * seconds, "epoch_high_s": 1.15 * seconds}
    kept = {f"{part}_nbytes": 0.0 for part in MEMORY} | {"memory_nbytes": GIB}
    named = {"io_by": "", "bottleneck": "compute", "bottleneck_s": seconds}
    return {**about, **spent, **kept, **named, **more}


def made(*rows):
    return STORED["points"].framed(rows)


def tables_of(points):
    """The tables of figures, of which nothing was measured."""
    found = {"points": points, "measured": STORED["measured"].framed([])}
    return found | {"recommended": recommend.recommended(points)}


# ------------------------------------------------------------------------------------------- points


def test_every_part_of_an_epoch_and_of_the_memory_is_there_once(result):
    table = result.tables["points"]
    found = table[table["feasible"]]
    assert set(found["kind"]) == {
        *("data", "sharded_data", "spatial", "filter", "channel", "pipeline")
    }
    loop = np.zeros(len(found))
    for name in LOOP:
        loop = loop + found[name].to_numpy()
    assert (loop == found["loop_s"]).all()
    assert (found["loop_s"] + found["input_s"] == found["epoch_s"]).all()
    memory = sum(found[f"{part}_nbytes"] for part in MEMORY)
    assert np.allclose(memory, found["memory_nbytes"], rtol=1e-12, atol=0)
    assert (found["epoch_low_s"] <= found["epoch_s"] * (1 + 1e-12)).all()
    assert (found["epoch_s"] <= found["epoch_high_s"] * (1 + 1e-12)).all()
    assert (found["ways"] * found["replicas"] == found["world_size"]).all()
    assert (found["group_batch"] == 10 * found["ways"]).all()


def test_groups_with_smaller_batches_take_as_many_more_iterations():
    """Two ranks of a group read 10 samples each for an iteration of 20, or two of 10."""
    ways = ["filter:ways=2", "filter:ways=2,group_batch=10"]
    options = OracleOptions(scenario=tiny(), strategies=tuple(ways), world_sizes=(8,))
    table = engine.run(STUDY, request(options)).tables["points"]
    assert table["group_batch"].tolist() == [20, 10]
    assert table["iterations"].tolist() == [10, 20]
    whole, half = table["compute_s"]  # each pass pays its share of what a batch does not shrink
    assert half >= whole


@pytest.mark.parametrize("size", [1, 2, 8])
def test_data_parallelism_takes_what_the_bounds_of_a_run_say(result, size):
    table = result.tables["points"].set_index(["world_size", "strategy"])
    own = table.loc[size, "data"]
    bound = bounds(tiny().with_values({"world_size": size}))
    assert own["loop_s"] == pytest.approx(bound.loop, rel=1e-3)
    assert own["exposed_s"] == pytest.approx(bound.allreduce, rel=1e-6)
    assert own["io_s"] == max(bound.resources.values())
    assert own["iterations"] == bound.iterations


def test_what_is_derived_from_points(result):
    """Speed-up is against one GPU; without a shared cable a simulated step is the closed form."""
    points = result.tables["points"].set_index(["world_size", "strategy"])
    one, eight = (points.loc[size, "data"] for size in (1, 8))
    assert one["speedup"] == one["efficiency"] == pytest.approx(1.0)
    assert eight["speedup"] == pytest.approx(one["epoch_s"] / eight["epoch_s"])
    assert eight["efficiency"] == pytest.approx(eight["speedup"] / 8)
    simulated = result.tables["simulated"].set_index("strategy")
    assert list(simulated.index) == ["data", "data+spatial (2)"]
    assert simulated.loc["data", "ratio"] == pytest.approx(1.0, abs=0.01)
    assert (simulated["step_fluid_s"] > 0).all()
    measured = result.tables["measured"].iloc[0]
    assert measured["predicted_s"] == eight["epoch_s"]
    assert measured["accuracy"] == pytest.approx(1 - abs(eight["epoch_s"] - 20.0) / 20.0)
    drawn = {name: str(words(figure)) for name, figure in STUDY.figures(result).items()}
    assert f"{100 * measured['accuracy']:.0f} %" in drawn["times"]
    assert "budget" in drawn["memory"]
    assert "Budget: 3 GiB a GPU (--budget-memory)." in str(result)


class Fixed(Data):
    """A step of 2 s of computing, 1 s between replicas beside its second half and 1 s within."""

    def step(self, job, max_pieces=None):
        sent = {"collective": "allreduce", "nbytes": 1.0}
        return Step(
            [
                Node("forward", (), 1.0),
                Node("halo", (0,), **sent),
                Node("backward", (1,), 1.0),
                Node("gradients", (2,), group="data", **sent),
                Node("update", (3,), 0.0),
            ]
        )

    def memory(self, job):
        return GpuMemory(1.0, 2.0, 3.0, 4.0, 5.0)


def test_a_point_by_hand():
    scenario = tiny(world_size=8, workload__jitter__compute=0)
    own = {"workload.exchange": "local_shuffle", "workload.model.layers": "vgg16"}
    machine = OracleMachine(scenario.with_values(own), 8)
    of, sent = machine.possible("x", Fixed(), lambda node: 1.0)
    count = machine.bounds.iterations
    assert (of["compute_s"], of["exposed_s"], of["bubble_s"]) == (2 * count, 2 * count, 0)
    # what replicas send may hide, what a group sends may not
    assert of["epoch_low_s"] == pytest.approx(of["loop_s"] - count)
    assert of["epoch_high_s"] == pytest.approx(of["loop_s"] + of["io_s"])
    assert of["memory_nbytes"] == 15
    assert sent == {"halo": count, "gradients": count}
    assert (of["bottleneck"], of["bottleneck_s"]) == ("compute", 2 * count)


def test_what_the_loop_waits_for_is_the_bottleneck():
    spent = row(1, "data", 2.0) | {"exposed_s": 8.0, "input_s": 0.0}
    found = points.bottleneck(spent, {"halo": 9.0, "gradients": 3.0})
    assert found == {"bottleneck": "halo", "bottleneck_s": 6.0}
    late = spent | {"input_s": 1.0, "io_s": 20.0, "io_by": "PFS bandwidth"}
    assert points.bottleneck(late, {}) == {"bottleneck": "PFS bandwidth", "bottleneck_s": 20.0}


def test_the_largest_hidden_exchange_adds_the_tolerance(result):
    scenario = tiny(world_size=8)
    machine = OracleMachine(scenario, 8)
    assert machine.exchange is not None
    assert (np.diff(machine.exchange) >= 0).all()
    half, whole = (  # iterations of 80 samples; 64 of them are worked out
        OracleMachine(tiny(world_size=8, workload__dataset__num_samples=80 * count), 8).exchange
        for count in (64, 128)
    )
    assert whole == pytest.approx(2.0 * half)
    machine.exchange = machine.exchange * 0
    assert machine.hidden_fraction(1e3) == 1.0
    machine.exchange = FRACTIONS * 50.0
    assert machine.hidden_fraction(1e3) == pytest.approx(0.2, rel=0.01)
    found = result.tables["points"]
    assert found.loc[found["world_size"] == 1, "hidden_exchange"].isna().all()
    assert (
        found.loc[(found["world_size"] == 8) & found["feasible"], "hidden_exchange"].notna().all()
    )


def test_where_no_fraction_is_exchanged_none_is_hidden():
    machine = OracleMachine(tiny(workload__exchange="local_shuffle"), 8)
    assert machine.hidden_fraction(1.0) is None


# --------------------------------------------------------------------------------------- strategies


def names(found):
    return [each.name for each in found]


def test_strategies_are_found_by_kind_name_and_values():
    scenario = tiny()

    def chosen(*wanted, size=8):
        return names(requests.chosen(scenario, size, wanted))

    assert chosen("data", "spatial") == ["data", "spatial", "data+spatial (2)"]
    assert chosen("data+spatial") == chosen("data+spatial-2") == ["data+spatial (2)"]
    assert chosen("zero-3") == chosen("ZeRO-3") == ["ZeRO-3"]
    assert chosen("sharded_data") == ["ZeRO-1", "ZeRO-2", "ZeRO-3"]
    both = chosen("pipeline:stages=4,schedule=gpipe", "data+pipeline:stages=4")
    assert both == ["data+pipeline:stages=4,schedule=gpipe", "data+pipeline (4)"]
    # one that is tried anyway goes by its name, and another with as many members does not
    assert chosen("filter:ways=2", "filter-8") == ["data+filter (2)"]
    assert chosen("spatial", "spatial:ways=8") == ["spatial", "data+spatial (2)", "spatial:ways=8"]
    assert chosen("spatial", size=1) == []


def test_what_holds_for_all_strategies_is_taken_over():
    like = "data:precision=mixed,optimiser=adam,recompute=true"
    scenario = tiny(workload__parallelism=like)
    found = requests.chosen(scenario, 8, ["data", "filter:ways=2"])
    assert {each.strategy.precision for each in found} == {"mixed"}
    assert all(each.strategy.recompute for each in found)


# -------------------------------------------------------------------------------------- recommended


def test_the_fastest_that_fits_is_recommended_with_its_margin():
    table = made(
        row(4, "data", 10.0, fits=True),
        row(4, "spatial", 8.0, fits=False, why_not="too large"),
        row(4, "filter", 20.0, fits=True),
        row(8, "data", 6.0, fits=True),
        row(8, "spatial", 6.9, fits=True),
    )
    best = recommend.recommended(table).set_index("world_size")
    assert best["strategy"].tolist() == ["data", "data", "data"]
    assert best["at"].tolist() == [8, 4, 8]
    assert best["second"].tolist() == ["spatial", "filter", "spatial"]
    assert best["margin"].to_numpy() == pytest.approx([0.15, 1.0, 0.15])
    assert best["clear"].tolist() == [False, True, False]
    said = "\n".join(text.verdict(best.reset_index(), SAYS).answer)
    assert "Fastest: data on 8 GPUs, 6.00 s an epoch, 1 GiB a GPU." in said
    assert "spatial, 15 % longer; too close to tell." in said


def test_reading_that_is_the_same_for_both_makes_nothing_close():
    both = [
        row(4, name, s, io_s=5.0, epoch_high_s=s + 5.0) for name, s in (("a", 8.0), ("b", 12.0))
    ]
    assert recommend.clearly(*both)
    assert not recommend.clearly(both[0], both[1] | {"epoch_low_s": 7.9})


def test_simulated_and_measured_points_by_hand():
    """A loop of ten steps of 1 s, each of which takes 1.5 s in the simulation: 15 s. Reading takes
    14 s, and a step follows. Measured were 20 s and 4 s, predicted 10 s."""
    rows = [row(8, "a", 10.0, io_s=14.0), row(8, "b", 10.0), row(8, "c", 10.0, feasible=False)]
    outcomes = {
        cells.SWEEP: SimpleNamespace(values={"points": rows, "communication": []}),
        "a @8": SimpleNamespace(values={"step_closed_s": 1.0, "step_fluid_s": 1.5}),
        "b @8": SimpleNamespace(values={"step_closed_s": 0.0, "step_fluid_s": 0.5}),
    }
    wanted = SimpleNamespace(
        simulate=[("a", 8), ("b", 8), ("c", 8)],
        measured=[("a", 8, 20.0), ("b", 8, 4.0), ("c", 8, 4.0)],
        budget=GIB,
    )
    found = cells.collect(wanted, outcomes)
    simulated = found["simulated"].set_index("strategy")
    assert simulated["epoch_fluid_s"].to_dict() == {"a": 15.5, "b": 15.0}
    assert simulated.loc["a", "ratio"] == 1.5 and np.isnan(simulated.loc["b", "ratio"])
    measured = found["measured"].set_index("strategy")
    assert measured["accuracy"].to_dict() == {"a": 0.5, "b": -0.5}
    assert found["points"]["fits"].tolist()[:2] == [True, True]
    assert pd.isna(found["points"]["fits"][2])
    wanted.budget = GIB - 2**28
    (first, *_) = cells.collect(wanted, outcomes)["points"].to_dict("records")
    assert first["fits"] is False or not first["fits"]
    assert first["why_not"] == "needs 1 GiB a GPU, 0.25 GiB too much"
    wanted.budget = None
    assert cells.collect(wanted, outcomes)["points"]["fits"].isna().all()


def test_what_a_simulated_step_takes_of_a_core():
    """Half a second and 2 ms a rank; 200 MB, and 1 MB a rank."""
    step = cells.StepCell({}, "data", {}, 100)
    assert (step.label, step.cost) == ("data @100", pytest.approx(0.7))
    assert step.memory == pytest.approx(200e6 + 100e6)
    # what decides is the scenario but its name, description, ranks and epochs, and the rest
    names = {"name": "x", "description": "y", "world_size": 4, "epochs": 9}
    assert cells.StepCell(names, "else", {}, 100).key == step.key
    for other in (({"seed": 3}, {}, 100), ({}, {"ways": 2}, 100), ({}, {}, 99)):
        document, strategy, size = other
        assert cells.StepCell(document, "data", strategy, size).key != step.key


def test_how_sure_the_fastest_is_by_the_errors_of_laws():
    """An iteration takes 1 s. Two of one law have one error; of two laws, each quantile meets each
    of the other."""

    def error(*rows):
        return cells.model_error({"points": made(*(each | {"fits": True} for each in rows))})

    best = row(8, "data", 10.0)
    low, high = np.exp(residuals().ends("step", 8))
    alone = error(best, row(4, "data", 11.0))
    assert (alone["iteration_s"], alone["strategy"]) == (1.0, "data")
    assert (alone["low_s"], alone["high_s"]) == pytest.approx((low, high))
    assert "second" not in alone and error(best | {"feasible": False}) == {}
    same = error(best, row(8, "other", 10.0, kind="data"))
    assert (same["second"], same["shared"], same["faster"]) == ("other", True, 0.5)
    assert error(best, row(8, "other", 10.1, kind="data"))["faster"] == 1.0
    divided = row(8, "filter", 11.0)
    steps, others = (
        10.0 * np.exp(residuals().quantiles("step", 8, cells.SHARES)),
        11.0 * np.exp(residuals().quantiles("divided", 8, cells.SHARES)),
    )
    wins = [(a < b) + 0.5 * (a == b) for a, b in product(steps.tolist(), others.tolist())]
    mixed = error(best, divided)
    assert not mixed["shared"] and mixed["faster"] == pytest.approx(np.mean(wins))
    assert 0.5 < mixed["faster"] < 1.0
    # the loop is off, reading is not: 12 s, and a step of a tenth of the loop
    reading = cells._epochs(row(8, "data", 10.0, io_s=12.0), 8)
    assert reading == pytest.approx(np.maximum(steps, 12.0 + steps / 10))


def test_world_sizes_are_powers_of_two_and_what_divides_the_largest():
    """32 GPUs; 800 samples are 80 batches of 10, 155 are 15."""
    assert requests.powers_of_two(tiny()) == [1, 2, 4, 8, 16, 32]
    few = tiny(workload__dataset__num_samples=155)
    assert requests.powers_of_two(few) == [1, 2, 4, 8]
    assert requests.powers_of_two(few.model_copy(update={"workload": few.workload.model_copy(
        update={"local_batch_size": 200})})) == [1]  # fmt: skip
    runs = [tiny(world_size=size) for size in (12, 4)]
    assert requests.default_sizes(runs) == [1, 2, 3, 4, 6, 8, 12, 16, 32]


def test_the_largest_part_of_an_epoch_by_hand():
    """6 s of communication in proportion to 1 s and 2 s: 2 s and 4 s."""
    parts = {"compute_s": 3.0, "waiting_s": 1.0, "bubble_s": 2.0, "exchange_s": 3.5}
    parts |= {"startup_s": 0.5, "exposed_s": 6.0, "input_s": 0.0, "io_by": "ssd", "io_s": 9.0}

    def largest(sent=(), **values):
        return tuple(points.bottleneck(parts | values, dict(sent)).values())

    sent = {"a": 1.0, "b": 2.0}
    assert largest(sent) == ("b", 4.0)
    assert largest(sent, compute_s=5.0) == ("compute", 5.0)
    assert largest(sent, waiting_s=5.0) == ("waiting for the slowest", 5.0)
    assert largest(sent, bubble_s=5.0) == ("pipeline bubble", 5.0)
    assert largest(sent, startup_s=5.0) == ("first batch", 5.0)
    assert largest() == ("exchange", 3.5)
    assert largest({"a": 0.0}) == ("exchange", 3.5)
    assert largest(sent, input_s=0.1) == ("ssd", 9.0)


def test_where_nothing_fits_the_least_too_large_is_named():
    table = made(
        row(2, "data", 10.0, fits=False, why_not="x", memory_nbytes=6 * GIB),
        row(2, "filter", 12.0, fits=False, why_not="x", memory_nbytes=5 * GIB),
        row(4, "data", 6.0, fits=True),
    )
    best = recommend.recommended(table)
    says = {**SAYS, "budget_nbytes": 4.0 * GIB}
    said = text.verdict(best, says).answer
    assert said[1] == (
        "On 2 GPUs nothing fits: filter takes least memory, 5 GiB a GPU, 1 GiB too much. Something"
        " fits on 4 GPUs."
    )
    assert recommend.nothing_fits(table, 4.0 * GIB) is None
    small_only = table[table["world_size"] == 2]
    problem = recommend.nothing_fits(small_only, 4.0 * GIB)
    assert problem is not None
    assert (problem.path, problem.value) == ("--budget-memory", "4 GiB")
    assert "filter at 2 GPUs" in problem.remedy


def test_a_larger_scale_where_nothing_fits_does_not_say_that_something_does():
    """On 4 GPUs data fits, and on 8 nothing does: it is 4 GPUs alone that something fits on."""
    table = made(
        row(4, "data", 6.0, fits=True),
        row(8, "filter", 5.0, fits=False, why_not="x", memory_nbytes=5 * GIB),
    )
    says = {**SAYS, "budget_nbytes": 4.0 * GIB}
    said = text.verdict(recommend.recommended(table), says).answer
    assert said[1].startswith("On 8 GPUs nothing fits: ")
    assert said[1].endswith(" 1 GiB too much. Something fits on 4 GPUs.")


@pytest.mark.parametrize(
    ("name", "gib"), [("v100-sxm2-16gb-amp", 16), ("h200-sxm5-141gb-amp", 141), ("p100", None)]
)
def test_the_budget_is_that_of_the_accelerators_name(name, gib):
    budget, source = requests.budget_of(None, name)
    assert budget == (None if gib is None else gib * GIB)
    assert requests.budget_of("8 GiB", name) == (8 * GIB, "--budget-memory")
    assert (name in source) == (gib is not None)


def test_commas_part_strategies_and_their_values():
    found = verb.strategies_of("data, pipeline:stages=4,microbatches=8,spatial")
    assert found == ["data", "pipeline:stages=4,microbatches=8", "spatial"]


# --------------------------------------------------------------------------- folders, text, figures


def test_nothing_within_the_budget_is_shown_and_refused(tmp_path, capsys):
    (tmp_path / "tiny.yaml").write_text(tiny().to_yaml())
    words = ["study", "oracle", str(tmp_path / "tiny.yaml"), "--world-sizes", "2"]
    words += ["--budget-memory", "1 MiB", "--out", str(tmp_path / "out")]
    assert main([*words, "--strategies", "data,filter"]) == 2
    shown = capsys.readouterr()
    assert "--budget-memory: must be enough" in shown.err
    assert "Nothing fits: " in shown.out
    assert (tmp_path / "out" / "points.csv").is_file()


def test_a_table_that_lacks_a_point_is_refused(result, tmp_path, capsys):
    copy = result.save(tmp_path / "copy", draw=False)
    table = pd.read_csv(copy / "points.csv")
    table[table["strategy"] != "data"].to_csv(copy / "points.csv", index=False)
    assert main(["results", "plot", str(copy)]) == 2
    assert "must only have rows for points of points.csv" in capsys.readouterr().err


def test_the_figure_of_times_has_a_column_of_each_kind_at_few_scales():
    kinds = ("data", "spatial", "filter")
    sizes = [1 << power for power in range(10)]
    table = made(
        *(
            row(size, f"{kind} {ways}", 1000.0 / size * (1 + ways), kind=kind, fits=True)
            for size in sizes
            for kind in kinds
            for ways in (1, 2)
        )
    )
    tables = tables_of(table)
    shown = shown_points(table, tables["measured"])
    assert shown["world_size"].unique().tolist() == [1, 8, 64, 512]
    assert shown["strategy"].tolist() == [f"{kind} 1" for kind in kinds] * 4
    assert list(faults(times_chart(tables))) == []
    assert list(faults(memory_chart(tables, None))) == []


def test_a_column_far_above_the_fastest_is_cut_and_says_how_high_it_is():
    table = made(row(2, "data", 1.0, fits=True), row(2, "pipeline", 40.0, fits=True))
    chart = times_chart(tables_of(table))
    figure = laid_out(chart)
    ax = figure.axes[0]
    assert max(bar.get_y() + bar.get_height() for bar in ax.patches) == pytest.approx(300)
    assert rows_of(chart, "bar")["y2"].max() == pytest.approx(300)
    assert "4000" in [word.get_text() for word, _ in words(figure)]
    assert list(faults(figure)) == []


def test_where_nothing_fits_figures_say_so():
    table = made(row(2, "data", 10.0, fits=False, why_not="x"))
    drawn = words(times_chart(tables_of(table)))
    assert "nothing fits" in [word.get_text() for word, _ in drawn]
