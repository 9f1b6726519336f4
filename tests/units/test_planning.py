"""``simshuffle plan``: runs that can be repeated, accuracy that is learned, budgets, and what it
refuses."""

import json
import math
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from simshuffle import plan_training
from simshuffle.cli import main
from simshuffle.errors import InputError, ScenarioError
from simshuffle.extensions.planning import asked as planned
from simshuffle.extensions.planning import first
from simshuffle.extensions.planning.curves import parse_setting_name, read_curves
from simshuffle.extensions.planning.flip_search import NOT_SIMULATED, FlipSearch
from simshuffle.extensions.planning.moved import MovedInput, keys_of_inputs, moved_inputs
from simshuffle.extensions.planning.precision import COARSE_TOLERANCE, TOLERANCE, runs_in_time
from simshuffle.extensions.planning.stages import late_cells
from simshuffle.extensions.planning.study import STUDY
from simshuffle.extensions.planning.text import (
    _explain_no_choice,
    _round_down_to_digits,
    _round_up_to_digits,
    _state_choice,
)
from simshuffle.extensions.planning.turns import DecisionModel, read_offer
from simshuffle.extensions.planning.verb import PlanOptions
from simshuffle.extensions.planning.written import format_in_unit, written_units
from simshuffle.job.plan.effort import effort
from simshuffle.job.scenario.options import scenario_of
from simshuffle.report.table_io import read_csv
from simshuffle.spec.units import Dimension, parse_quantity
from simshuffle.study import engine
from simshuffle.study.cell import Outcome
from tests.small import small

pytestmark = pytest.mark.usefixtures("cells_kept")

TINY = ("world_size=8", "workload.dataset.num_samples=512", "sweep={}")
SET = [word for value in TINY for word in ("--set", value)]
LEARNED = Path(__file__).parents[1] / "data" / "learned.csv"


def strategies(**options):
    exchange = options.pop("own", "local_shuffle")
    return plan_training(small(workload__exchange=exchange), progress=False, **options)


def test_every_number_comes_from_a_run_that_can_be_repeated(here, capsys):
    named = "global_shuffle:source=pfs", "partial_local_shuffle:exchange_fraction=0.1"
    words = ["--price", "host-hour=3,ssd-tb=80", "--out", "plan", "--quiet"]
    words += [word for name in named for word in ("--strategy", name)]
    assert main(["plan", "quickstart", *SET, *words]) == 0
    table, probes = (read_csv(here / "plan" / f"{n}.csv") for n in ("strategies", "probes"))
    rows = [table.iloc[0], table.iloc[-1]]
    rows += [probes[probes["question"] == name].iloc[-1] for name in set(probes["question"])]
    assert len(rows) == 4
    for number, row in enumerate(rows):
        again = shlex.split(row["command"])
        assert again[0] == "simshuffle"
        assert main([*again[1:], "--out", f"run{number}", "--quiet"]) == 0
        epochs = read_csv(here / f"run{number}" / "epochs.csv")
        assert epochs["epoch_s"].iloc[-1] == pytest.approx(row["epoch_s"], rel=1e-9)


FAILING = {
    "failures": {"kind": "exponential", "mean_between": "10 d", "repair": {"mean": "2 d"}},
    "workload.checkpoint": {
        "period": "10 min", "mode": "synchronous", "layout": "whole", "to": "pfs",
    },
}  # fmt: skip


def test_saves_and_spares_are_those_of_months_that_can_be_repeated(here, capsys):
    values = [word for k, v in FAILING.items() for word in ("--set", f"{k}={json.dumps(v)}")]
    words = [*SET, *values, "--strategy", "local_shuffle", "--out", "plan", "--quiet"]
    assert main(["plan", "quickstart", *words]) == 0
    row = read_csv(here / "plan" / "strategies.csv").iloc[0]
    # hours and hosts with what fails: 2 hosts of the ranks and the spares
    assert row["cost"] == pytest.approx(row["hours"] * (2 + row["spares"]))
    assert 0.9 < row["goodput"] < 1.0
    assert "spare hosts" in capsys.readouterr().out
    waiting = {}
    for spares in (int(row["spares"]), int(row["spares"]) - 1):
        again = row["month"].replace(f"spares={row['spares']:.0f}", f"spares={spares}")
        assert main([*shlex.split(again)[1:], "--out", f"month{spares}", "--quiet"]) == 0
        days = read_csv(here / f"month{spares}" / "days.csv")
        waiting[spares] = days["waiting_days"].sum() / days["days"].sum()
        if spares == row["spares"]:
            assert days["goodput"].mean() == pytest.approx(row["goodput"], rel=1e-6)
    most, least = sorted(waiting.values(), reverse=True)
    assert least <= 0.01 < most


def test_a_turn_can_be_planned(here, monkeypatch, capsys):
    monkeypatch.setattr("simshuffle.extensions.planning.stages.MAX_SECONDS", 0.0)
    named = ["--strategy", "global_shuffle:source=pfs", "--strategy", "local_shuffle"]
    values = [*SET, "--set", "workload.dataset.num_samples=5120"]
    values += ["--set", "workload.exchange=local_shuffle"]
    rate = ["--set", "cluster.parallel_file_system.open_rate=1 k/s"]
    assert main(["plan", "quickstart", *values, *rate, *named, "--out", "plan", "--quiet"]) == 0
    turns = read_csv(here / "plan" / "turns.csv").set_index("input")
    turn = turns.loc["step time"]
    assert (turn["before"], turn["after"]) == ("local", "global-pfs")
    assert turn["value"] == pytest.approx(turn["still"], rel=0.031)
    assert turn["value"] == pytest.approx(turn["changed"], rel=0.031)
    words = shlex.split(turn["command"])[1:]  # the same strategies are in it
    back = turn["still"] / turn["changed"]
    times = turn["key"].removesuffix("forward")  # the step has several, which are moved alike

    def still(word):
        key, _, value = word.partition("=")
        if not key.startswith(times):
            return word
        return f"{key}={back * parse_quantity(value, Dimension.SECONDS):.6g} s"

    # what is chosen there is asked, not where the choice turns from there
    monkeypatch.setattr("simshuffle.extensions.planning.flips.INPUT_SECONDS", 0.0)
    for run, chosen in ((words, "global-pfs"), ([still(word) for word in words], "local")):
        assert main([*run, "--out", chosen, "--quiet"]) == 0
        table = read_csv(here / chosen / "strategies.csv").set_index("strategy")
        assert set(table.index) == {"local", "global-pfs"}
        assert table.index[table["chosen"]].tolist() == [chosen]


def test_the_cheapest_that_reaches_the_target_is_chosen():
    table = strategies(target_accuracy=LEARNED, target=0.78).tables["strategies"]
    table = table.set_index("strategy")
    assert table["epochs"].fillna(0).to_dict() == {
        "global-pfs": 20, "global-ssd": 20, "local": 0, "partial-0.3": 20,
    }  # fmt: skip
    assert table["cost"].isna().to_dict()["local"]
    chosen = table[table["chosen"]].index.item()
    assert table.loc[chosen, "cost"] == table["cost"].min()
    # fewer epochs are needed of a lower target, by all that reach it
    named = ["global_shuffle:source=pfs", "local_shuffle"]
    lower = strategies(target_accuracy=LEARNED, target=0.66, strategy=named).tables["strategies"]
    assert lower["epochs"].fillna(0).tolist() == [10, 0]


def test_the_default_target_is_global_less_one_point():
    named = ["global_shuffle:source=pfs", "local_shuffle"]
    result = strategies(target_accuracy=LEARNED, strategy=named)
    assert result.meta["asked"]["target"] == pytest.approx(0.79)
    assert "to an accuracy of 0.79" in result.verdict()[0]
    assert "local does not reach the target" in " ".join(result.verdict())


def test_results_of_tta_are_curves_too(results_made):
    folder = results_made("time_to_accuracy")
    assert {name for name, _ in read_curves(folder)} == {"global", "partial"}


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("global (PFS)", ("global", None)),
        ("global_shuffle", ("global", None)),
        ("local", ("local", 0.0)),
        ("partial 0.1", ("partial", 0.1)),
        ("partial-0.1", ("partial", 0.1)),
        ("IS-Pair 0.3", ("IS-Pair", 0.3)),
        ("partial-1.2.3", ("partial-1.2.3", None)),
    ],
)
def test_a_curve_is_called_as_tables_call_it(name, setting):
    assert parse_setting_name(name, None) == setting


def test_a_budget_leaves_out_what_costs_more_and_says_what_would_do():
    named = ["global_shuffle:source=pfs", "local_shuffle"]
    prices = {"host-hour": 1.0, "pfs-gbs": 1000.0}
    result = strategies(strategy=named, prices=prices)
    cost = result.tables["strategies"].set_index("strategy")["cost"]
    assert cost["global-pfs"] > 1000 > cost["local"]
    enough = strategies(strategy=named, prices=prices, budget=500.0)
    assert enough.verdict()[0].startswith("Train with local: ")
    assert "within the budget of 500" in enough.verdict()[0]
    none = strategies(strategy=named, prices=prices, budget=1e-6)
    assert not none.tables["strategies"]["chosen"].any()
    least = f"the cheapest is local, with a cost of {cost['local']:,.4g}."
    assert none.verdict()[0].endswith(least)
    # the number that is said is enough
    said = float(none.verdict()[0].split("a cost of ")[1].removesuffix("."))
    assert (
        strategies(strategy=named, prices=prices, budget=said).tables["strategies"]["chosen"].any()
    )


LONG = "not simulated: an epoch takes 9 s at least; --exact simulates it"


@pytest.mark.parametrize(
    ("why", "said"),
    [
        (
            LONG,
            "No simulated strategy reaches an accuracy of 0.8: local does not reach the target;"
            " global-pfs was not simulated (--exact simulates it).",
        ),
        (
            "it cannot",
            "No simulated strategy reaches an accuracy of 0.8: local does not reach the target;"
            " global-pfs was not simulated.",
        ),
    ],
)
def test_a_strategy_that_was_not_simulated_is_not_said_to_miss_the_target(why, said):
    """The curve of global-pfs reaches the target after 20 epochs, and that of local never does."""
    table = pd.DataFrame(
        {"strategy": ["local", "global-pfs", "IS"], "fits": True, "why": ["", why, LONG]}
    ).assign(epochs=[math.nan, 20.0, math.nan], cost=math.nan)
    question = {"target": 0.8, "budget": None, "prices": {"host-hour": 1.0}}
    assert _explain_no_choice(table, question) == said
    line = _explain_no_choice(table[:1], question)
    assert line.startswith("No strategy that fits the hosts reaches an accuracy of 0.8: local does")


def test_a_strategy_that_was_not_simulated_is_not_said_to_miss_the_budget():
    table = pd.DataFrame(
        {"strategy": ["local", "IS", "global-pfs"], "fits": True, "why": ["", LONG, LONG]}
    ).assign(epochs=9.0, cost=[7.0, math.nan, math.nan])
    question = {"target": None, "budget": 5.0, "prices": {"host-hour": 1.0}}
    assert _explain_no_choice(table, question) == (
        "No simulated strategy meets the budget of 5: the cheapest is local, with 7 host-hours;"
        " IS, global-pfs were not simulated (--exact simulates them)."
    )


@pytest.mark.parametrize(
    ("goodput", "spares", "hosts"),
    [
        (math.nan, math.nan, "2 hosts"),
        (0.9, 0.0, "2 hosts"),
        (0.9, 1.0, "2 hosts and 1 spare host"),
        (0.9, 3.0, "2 hosts and 3 spare hosts"),
        (0.9, math.nan, "2 hosts and all spare hosts of the machine"),
    ],
)
def test_a_cost_stands_beside_all_hosts_that_are_in_it(goodput, spares, hosts):
    """Spare hosts cost as much as others: 4 h of 2 hosts and 3 spare ones are 20 host-hours."""
    cost = 4.0 * (2.0 + (2.0 if math.isnan(spares) else spares))
    row = {"strategy": "local", "hours": 4.0, "epochs": 9, "epoch_s": 8.0, "cost": cost}
    question = {"target": None, "budget": None, "prices": {"host-hour": 1.0}}
    meta = {"asked": question, "plan": {"hosts": 2}}
    said = _state_choice(row | {"goodput": goodput, "spares": spares}, meta)
    assert said.startswith(f"Train with local: 4 h on {hosts}, {cost:.4g} host-hours")


def test_a_scenario_whose_own_strategy_has_no_room_is_planned_all_the_same(capsys, tmp_path):
    words = ["--set", "cluster.ssd.capacity=1 MB", "--out", str(tmp_path / "plan"), "--json"]
    assert (
        main(["plan", "quickstart", *SET, "--set", "workload.exchange=local_shuffle", *words]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert [row["strategy"] for row in found["strategies"] if row["fits"]] == ["global-pfs"]
    assert found["verdict"][0].startswith("Train with global-pfs: ")
    assert "do not fit" in found["verdict"][1]


STEP_SETTINGS = {
    "workload.model.accelerators.v100": {"forward": "0.19 s / 192", "measured_batch": 64},
    "workload.local_batch_size": 64,
    "cluster.parallel_file_system.read_bandwidth": "480 Gbit/s",
}


def test_a_threshold_is_said_in_the_unit_in_which_its_input_was_written(tmp_path):
    """The step of 0.19 s is that of 64 samples: not forward seconds of a sample (989.6 us)."""
    base = scenario_of("quickstart", STEP_SETTINGS)
    accelerator = base.cluster.host.accelerator
    settings = {key.replace("v100", accelerator): value for key, value in STEP_SETTINGS.items()}
    base = scenario_of("quickstart", settings)
    keys = [key for named in keys_of_inputs(base).values() for key in named]
    units = written_units("quickstart", settings, keys)
    inputs = moved_inputs(base, units)
    assert inputs["step time"].value() == pytest.approx(0.19)
    assert inputs["step time"].format_value(0.5) == "0.095 s"
    assert inputs["PFS bandwidth"].format_value(0.125) == "60 Gbit/s"
    # a file and the cluster file that it names
    cluster = "parallel_file_system: {open_rate: 25k/s}\nssd: {capacity: 3.84 TB}\n"
    (tmp_path / "machine.yaml").write_text(cluster)
    (tmp_path / "own.yaml").write_text("name: own\ncluster: machine.yaml\n")
    capacity, rate = "cluster.ssd.capacity", "cluster.parallel_file_system.open_rate"
    found = written_units(tmp_path / "own.yaml", {rate: "30 /s"}, [capacity, rate])
    assert found == {capacity: "TB", rate: "/s"}
    assert written_units(base, {}, [capacity]) == {}
    assert format_in_unit(3.1e12, "", Dimension.NBYTES, 3) == "3.1 TB"
    assert format_in_unit(3.1e3, "TB", Dimension.NBYTES, 3) == "3.1 kB"


def decision(steps=20):
    """Local shuffle beside global shuffle from a file system that opens few files, whose closed
    forms are taken as they are; the step time is moved."""
    base = small(
        workload__exchange="local_shuffle",
        workload__dataset__num_samples=4096,
        cluster__parallel_file_system__open_rate="1 k/s",
    )
    offer = {"kept_nbytes": 0.0, "epochs": 90, "hosts": 2, "goodput": 1.0, "seconds": None}
    offers = [
        read_offer(base, {**offer, **more})
        for more in (
            {"name": "local", "exchange": "local_shuffle", "mixing": 0.0, "reads_pfs": False},
            {
                "name": "global-pfs",
                "exchange": "global_shuffle:source=pfs",
                "mixing": 2.0,
                "reads_pfs": True,
            },
        )
    ]
    moved = moved_inputs(base, {})["step time"]
    assert isinstance(moved, MovedInput)
    return DecisionModel(base, offers, {"host-hour": 1.0}, 0.01, None, moved, steps)


@pytest.mark.parametrize("known", [{}, {"seconds": 500.0, "epoch_s": 5.0}])
def test_a_training_with_failures_is_longer_by_its_goodput_whatever_is_moved(known):
    """So that its cost is, whether it was simulated or not."""
    base = decision().base
    plain = {"name": "global-pfs", "exchange": "global_shuffle:source=pfs", "reads_pfs": True}
    plain |= {"kept_nbytes": 0.0, "epochs": 90, "hosts": 2, "mixing": 2.0}
    plain |= {"seconds": None, **known}
    costs = []
    for goodput in (1.0, 0.6):
        seconds = known and {"seconds": known["seconds"] / goodput}
        offer = read_offer(base, {**plain, **seconds, "goodput": goodput})
        rest = {"host-hour": 1.0}, 0.01, None, moved_inputs(base, {})["open rate"], 20
        model = DecisionModel(base, [offer], *rest)
        costs.append([model.costs_at(factor)["global-pfs"] for factor in (0.1, 1.0, 9.0)])
    assert costs[0][0] > 1.5 * costs[0][1] > 1.5 * costs[0][2]
    assert costs[1] == pytest.approx([cost / 0.6 for cost in costs[0]])


def flip_cell(months):
    """A search of turning points among five strategies, of which the first three were simulated,
    with these months."""
    names = ["a", "b", "c", "d", "e"]
    strategy = SimpleNamespace(tier="ssd")
    candidates = [
        SimpleNamespace(
            name=name, exchange=name, kept_nbytes=0.0, epochs=9, mixing=0.0, strategy=strategy
        )
        for name in names
    ]
    epochs = Outcome({"epochs": {"epoch_s": [2.0, 1.0], "staging_s": [1.0, 0.0]}})
    outcomes = dict.fromkeys(names[:3], epochs)
    outcomes |= {f"months of {n}": Outcome(m) for n, m in zip(names, months, strict=False)}
    base = decision().base
    plan_request = SimpleNamespace(
        base=base, candidates=candidates, run_scenarios=outcomes, has_failures=True
    )
    plan_request.simulated_candidates = candidates[:3]
    plan_request.prices, plan_request.tie_share, plan_request.budget = {}, 0.01, None
    plan_request.units, plan_request.exact = {}, False
    return next(iter(late_cells(plan_request, outcomes).values()))


def test_hosts_fail_beside_strategies_that_were_not_simulated_too():
    """Of five strategies the last two were not: they get goodput and spares of the median one."""
    months = [{"goodput": 0.9, "spares": 3}, {"goodput": 0.5, "spares": 9}]
    months.append({"goodput": 0.8, "spares": None, "hosts_free": 5})
    cell = flip_cell(months)
    assert [offer["goodput"] for offer in cell.offers] == [0.9, 0.5, 0.8, 0.8, 0.8]
    hosts = [offer["hosts"] - decision().base.hosts for offer in cell.offers]
    assert hosts == [3, 9, 5, 5, 5]


def test_a_training_that_never_gets_on_is_very_long_whether_it_was_simulated_or_not():
    """Months without a useful second count as a millionth: 1 s of staging, 2 s of the first epoch
    and eight of 1 s, a million times. A training that was not simulated is as much longer."""
    offers = flip_cell([{"goodput": 0.0, "spares": 0}] * 3).offers
    assert [offer["seconds"] for offer in offers] == [11e6] * 3 + [None] * 2
    base = decision().base
    plain = offers[-1] | {"exchange": "global_shuffle:source=pfs"}
    useful = read_offer(base, plain | {"goodput": 1.0}).seconds
    assert read_offer(base, plain).seconds == pytest.approx(1e6 * useful)


def searched(seconds, seconds_left=math.inf):
    """The turning point where runs of an offer take ``seconds(model, offer, factor)``, whatever
    closed forms say; and the factors that were run."""
    run: list[float] = []
    model = decision()
    search = FlipSearch(model, 32.0, False, seconds_left=seconds_left)

    def training_seconds(offer, factor):
        run.append(factor)
        search.simulated[offer.name, factor] = seconds(model, offer, factor)
        return search.simulated[offer.name, factor]

    search._training_seconds = training_seconds
    return search.find_row(), run


@pytest.mark.parametrize("off", [1.0, 1.04, 1.6, 0.9])
def test_a_turning_point_is_the_one_that_runs_show_on_both_sides(off):
    """Runs turn where the step time is ``off`` times what closed forms claim, as they are at 1."""
    border = off * decision().find_border(1.0, 32.0)
    turn, run = searched(lambda model, offer, factor: model._closed_seconds(offer, factor / off))
    assert turn["confirmed"]
    assert turn["factor"] == pytest.approx(border, rel=0.031)
    assert turn["still"] < turn["value"] < turn["changed"] < 1.07 * turn["still"]
    assert any(factor < border for factor in run)
    assert any(factor >= border for factor in run)


def test_a_turning_point_that_no_run_shows_is_none():
    """The other strategy, which closed forms claim to be as cheap, costs a tenth more wherever it
    is run."""
    turn, run = searched(
        lambda model, offer, factor: (
            model._closed_seconds(model.offers[0], factor) * (1.0 if offer.name == "local" else 1.1)
        )
    )
    assert run
    assert not turn["confirmed"]
    assert "global-pfs costs +10 % against local" in turn["why"]


def test_a_strategy_that_fits_only_a_moved_ssd_is_compared_where_it_fits(monkeypatch):
    """Its run is kept under factor 1, where hosts have no room for it."""
    model = decision()
    search = FlipSearch(model, 32.0, False)
    now = search.current_choice
    search.simulated["roomy", 1.0] = 1.0
    by_factor = {1.0: {now: 10.0}, 4.0: {now: 10.0, "roomy": 12.0}}
    monkeypatch.setattr(type(model), "costs_at", lambda self, factor: by_factor[factor])
    why = search._describe_refutation({"after": "roomy", "factor": 4.0})
    assert why.endswith(f"roomy costs +20 % against {now}")


def test_a_turning_point_is_not_simulated_beyond_the_time_for_its_input():
    turn, run = searched(lambda model, offer, factor: 1.0, seconds_left=0.01)
    assert (run, turn["confirmed"], turn["why"]) == ([], False, NOT_SIMULATED)


@pytest.mark.parametrize("value", [1234.4, 1235.0, 0.30941, 5e-7])
def test_a_threshold_is_rounded_to_the_side_on_which_it_holds(value):
    assert value <= _round_up_to_digits(value, 4) <= 1.002 * value
    assert 0.99 * value <= _round_down_to_digits(value, 3) <= value


def test_the_largest_fraction_that_is_said_fits_and_a_larger_one_does_not():
    named = ["local_shuffle", "partial_local_shuffle:exchange_fraction=0.1"]
    room = {"cluster__ssd__capacity": "13.37 MB"}  # a shard of 100 samples has 10 MB
    scenario = small(workload__exchange="local_shuffle", **room)
    result = plan_training(scenario, strategy=named, progress=False)
    text = str(result)
    fraction = float(text.split("Q up to ")[1].split(" ", maxsplit=1)[0])
    exchange = "partial_local_shuffle:exchange_fraction={:.4g}"
    fitting = scenario.with_values({"workload.exchange": exchange.format(fraction)})
    assert fitting.workload.exchange.fraction == fraction
    with pytest.raises(ScenarioError, match="keeps"):
        scenario.with_values({"workload.exchange": exchange.format(1.02 * fraction)})


def test_closed_forms_answer_first():
    options = PlanOptions(scenario=small(workload__exchange="local_shuffle"))
    lines = [*first.closed_form_answer(planned.request(options).values)]
    assert lines[0].startswith("Train with ")
    assert "at least" in lines[0]
    assert 2 <= len(lines) <= 5


def test_closed_forms_say_that_only_strategies_without_room_reach_the_target():
    request = SimpleNamespace(feasible_candidates=[SimpleNamespace(epochs=None)])
    (line,) = first.closed_form_answer(request)
    assert line == "No strategy that fits the hosts reaches the target accuracy."


@pytest.mark.parametrize("fraction", ["0.1", "0.10"])
def test_a_strategy_that_is_named_twice_is_refused(fraction):
    named = [f"partial_local_shuffle:exchange_fraction={q}" for q in ("0.1", fraction)]
    with pytest.raises(InputError, match="must be named once"):
        strategies(strategy=named)


def test_within_a_minute_long_runs_are_coarse_and_the_longest_are_left_out(monkeypatch):
    short = small(workload__exchange="local_shuffle", time_tolerance=0.01)
    monkeypatch.setattr(
        "simshuffle.extensions.planning.precision.LIGHT_SECONDS", effort(short).seconds
    )
    long = short.with_values({"workload.exchange": "partial_local_shuffle:exchange_fraction=1"})
    kept = runs_in_time({"short": short, "long": long})
    assert kept["short"].time_tolerance == 0.01
    assert kept["long"].time_tolerance == COARSE_TOLERANCE
    monkeypatch.setattr("simshuffle.extensions.planning.precision.MAX_SECONDS", 0.0)
    assert list(runs_in_time({"long": long, "short": short})) == ["short"]
    assert TOLERANCE == "time_tolerance"


def test_a_plan_of_an_earlier_version_simulated_all(tmp_path):
    options = PlanOptions(scenario=small(workload__exchange="local_shuffle"))
    request = planned.request(options)
    newer = ("exact", "units", "plan_words")
    meta = {"asked": {k: v for k, v in request.asked["asked"].items() if k not in newer}}
    (tmp_path / "scenario.yaml").write_text(request.documents["scenario.yaml"])
    assert planned.repeat(tmp_path, meta).values.exact
    assert not request.values.exact


def test_a_result_of_an_earlier_version_is_read(results_made, tmp_path):
    """Its turning points are those of closed forms: the last value that a run shows is that of
    now."""
    folder = tmp_path / "plan"
    shutil.copytree(results_made("planning"), folder)
    meta = json.loads((folder / "meta.json").read_text())
    for holder, names in (
        ("asked", ("exact", "units", "plan_words")),
        ("plan", ("doubtful", "coarse", "not_searched")),
    ):
        for name in names:
            del meta[holder][name]
    (folder / "meta.json").write_text(json.dumps(meta))
    turns = read_csv(folder / "turns.csv")
    turns.drop(columns=["still", "changed"]).to_csv(folder / "turns.csv", index=False)
    result = engine.read(STUDY, folder)
    found = result.tables["turns"]
    assert found["still"].tolist() == found["now"].tolist()
    assert found["changed"].tolist() == found["value"].tolist()
    assert "Train with" in str(result)
