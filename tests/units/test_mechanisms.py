"""Ablation and search end to end on tiny scenarios; result folders; bad input."""

import json
import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from simshuffle import run
from simshuffle.cli import main
from simshuffle.job.plan.effort import effort
from simshuffle.studies.mechanisms import ablation, hiding, search
from simshuffle.studies.mechanisms import text as mechanisms_text
from simshuffle.studies.mechanisms.ablation import STUDY
from simshuffle.studies.mechanisms.border import ExchangePoint
from simshuffle.studies.mechanisms.points import TOGETHER, Points
from simshuffle.studies.mechanisms.search import SearchCell
from simshuffle.studies.mechanisms.switches import changes, contributions, differences, flat
from simshuffle.studies.mechanisms.tables import ALL
from simshuffle.studies.mechanisms.variants import HOST_WORK, READS, WIRE, prepare_scenario
from simshuffle.studies.mechanisms.variants import with_variant as variant
from simshuffle.studies.mechanisms.verb import AblationOptions, HidingOptions
from simshuffle.studies.mechanisms.windows import SimulatedWindow, added, window_of
from simshuffle.study import engine
from simshuffle.study.registry import read_folder
from tests.small import small


def tiny(**values):
    return small(
        world_size=4, workload__dataset__num_samples=160, workload__local_batch_size=8, **values
    )


def exchanging(**schedule):
    return tiny(
        workload__exchange={
            "kind": "partial_local_shuffle",
            "exchange_fraction": 0.5,
            "schedule": schedule,
        }
    )


def asked(**options):
    return ablation.request(AblationOptions(scenario=exchanging(), **options))


def searched(**options):
    return hiding.request(HidingOptions(scenario=exchanging(), **options))


@pytest.fixture(scope="module")
def request_():
    return asked(also=[("payload", "encoded")], alone=[("partner_scope", "host")], seeds=2)


@pytest.fixture(scope="module")
def result(request_):
    return engine.run(STUDY, request_)


@pytest.fixture(scope="module")
def tables(result):
    return result.tables


# ----------------------------------------------------------------------------------------- ablation


def test_the_switches_are_what_the_strategies_differ_in(request_):
    assert [(s.key, s.start, s.end) for s in request_.values.switches] == [
        ("partner_rule", "random", "importance_sorted"),
        ("partner_lifetime", "sample", "epoch"),
        ("samples_per_message", 1, "iteration"),
        ("barriers", "message", "iteration"),
        ("payload", "decoded", "encoded"),
    ]


def test_combinations_that_cannot_be_are_left_out(request_):
    # of 32: several samples in a message need a partner that stays
    assert len(request_.values.states) == 24
    assert all(state[1] or not state[2] for state in request_.values.states)


def test_partial_local_shuffle_is_importance_exchange_with_random_samples():
    kinds = ("partial_local_shuffle", "importance_exchange")
    partial, importance = (
        tiny(workload__exchange=f"{kind}:exchange_fraction=0.5").workload.exchange for kind in kinds
    )
    assert [switch.key for switch in differences(flat(partial), flat(importance))] == ["selection"]


def test_the_ends_are_those_of_a_run_of_the_strategies(request_, tables):
    epochs = tables["runs"][
        (tables["runs"]["label"] == "epoch")
        & (tables["runs"]["seed"] == request_.values.start.seed)
    ].set_index("state")["seconds"]
    for state, kind in (("00000", "importance_exchange"), ("11110", "importance_pair")):
        result = run(
            request_.values.start.with_values(
                {"workload.exchange": f"{kind}:exchange_fraction=0.5,schedule=authors"}
            )
        )
        assert epochs[state] == pytest.approx(result.epochs["epoch_s"].iloc[-1], rel=1e-12)


def test_shares_add_up_and_labels_add_up_to_the_epoch(tables):
    found = contributions(tables["switches"], tables["runs"])
    epoch = found[found["label"] == "epoch"].set_index("switch")
    assert epoch["share"].drop(ALL).sum() == pytest.approx(1.0)
    by_label = found.pivot(index="switch", columns="label", values="mean_s")
    np.testing.assert_allclose(
        by_label.drop(columns="epoch").sum(axis=1), by_label["epoch"], atol=1e-12
    )


def test_contributions_and_changes_by_hand():
    """Of two seeds: a first takes off 3 and 4 s, and last 4 and 6; b first 1, and last 2 and 3."""
    epochs = {"00": (10.0, 12.0), "10": (7.0, 8.0), "01": (9.0, 11.0), "11": (5.0, 5.0)}
    reads = {"00": (2.0, 2.0), "10": (1.0, 1.0), "01": (2.0, 2.0), "11": (1.0, 1.0)}
    rows = [
        (state, seed, label, seconds)
        for label, of_states in (("epoch", epochs), ("read", reads))
        for state, of_seeds in of_states.items()
        for seed, seconds in zip((2, 7), of_seeds, strict=True)
    ]
    runs = pd.DataFrame(rows, columns=["state", "seed", "label", "seconds"])
    switches = pd.DataFrame({"switch": ["a", "b"]})
    found = contributions(switches, runs).set_index(["label", "switch"])
    columns = ["first_s", "last_s", "mean_s", "min_s", "max_s", "share"]
    # of each seed the mean of first and last: 3.5 and 5, 1.5 and 2; together 5 and 7
    expected = {
        ("epoch", "a"): [-3.5, -5.0, -4.25, -5.0, -3.5, 4.25 / 6],
        ("epoch", "b"): [-1.0, -2.5, -1.75, -2.0, -1.5, 1.75 / 6],
        ("epoch", ALL): [-6.0, -6.0, -6.0, -7.0, -5.0, 1.0],
        ("read", "a"): [-1.0, -1.0, -1.0, -1.0, -1.0, 1 / 6],
        ("read", "b"): [0.0] * 6,
        ("read", ALL): [-1.0, -1.0, -1.0, -1.0, -1.0, 1 / 6],
    }
    for row, values in expected.items():
        assert found.loc[row, columns].tolist() == pytest.approx(values), row
    # b cannot come first: it is last in the only order
    few = runs[runs["state"] != "01"]
    found = contributions(switches, few).set_index(["label", "switch"])
    assert found.loc[("epoch", "a"), "mean_s"] == -3.5
    assert found.loc[("epoch", "b"), "mean_s"] == -2.5
    assert np.isnan(found.loc[("epoch", "a"), "last_s"])
    assert np.isnan(found.loc[("epoch", "b"), "first_s"])
    alone = pd.DataFrame(
        [
            ("c", "1", "start", "epoch", 7, 15.0),  # 12 s
            ("c", "1", "start", "epoch", 2, 11.0),  # 10 s
            ("c", "1", "end", "epoch", 2, 4.0),
            ("c", "1", "end", "epoch", 7, 7.0),
        ],
        columns=["key", "value", "base", "label", "seed", "seconds"],
    )
    found = changes(switches, runs, alone).set_index("base")
    columns = ["change_s", "min_s", "max_s"]
    assert found.loc["start", columns].tolist() == [2.0, 1.0, 3.0]
    assert found.loc["end", columns].tolist() == [0.5, -1.0, 2.0]


def test_what_cannot_be_first_or_last_is_left_empty(tables):
    found = contributions(tables["switches"], tables["runs"]).set_index(["label", "switch"])
    assert found.loc[("epoch", "payload"), "first_s"] < 0
    assert np.isnan(found.loc[("epoch", "samples_per_message"), "first_s"])
    assert np.isnan(found.loc[("epoch", "partner_lifetime"), "last_s"])


def test_lifetimes_between_are_simulated_alone(request_, result):
    assert ("partner_lifetime", "iteration") in request_.values.alone
    assert set(result.tables["alone"]["key"]) == {"partner_lifetime", "partner_scope"}
    of = result.derived["changes"]
    host = of[(of["key"] == "partner_scope") & (of["label"] == "epoch")]
    assert set(host["base"]) == {"start", "end"}
    assert (host["min_s"] <= host["change_s"]).all()


def test_a_switch_that_another_needs_off_comes_first():
    start = "partial_local_shuffle:schedule.partner_lifetime=epoch,schedule.partners_per_epoch=2"
    end = "partial_local_shuffle:schedule.partner_lifetime=sample"
    # the lifetime must be switched after the number of partners: one order is left
    assert len(asked(start=start, end=end).values.states) == 3


# ------------------------------------------------------------------------------------- command line


def test_unsteady_limits_are_said(monkeypatch):
    monkeypatch.setattr(
        search, "search_exactly", lambda added, tolerance, most: (int(added(1) <= tolerance), False)
    )
    wanted = searched(world_size=[4], variant=["pair"], tolerance=1.0, exact=True)
    found = engine.run(hiding.STUDY, wanted)
    assert any("not monotone" in part for part in found.parts() if isinstance(part, str))


def test_a_search_begins_at_closed_forms_and_ends_at_what_is_allowed():
    """An exact one simulates 4 samples once, and 11 times as many as closed forms say. Of 1 ms a
    sample 2 % of 1.25 s hide 25 of 40: that is known when 26 are not hidden, or estimated where a
    second simulation takes more than 60 of 100 s."""
    cell = SearchCell(prepare_scenario(exchanging()).to_dict(), "own", 0.02, 1.2501)
    few, most = (
        effort(variant(cell.scenario, "own", samples, {})).seconds
        for samples in (4, cell.hidden_by_forms(40))
    )
    assert cell.cost == pytest.approx(few + 11 * most)
    cell = replace(cell, limit_s=100.0)
    assert cell.cost == 100.0
    points = SimpleNamespace(
        max_samples=40, spent=20.0, simulate_point=lambda n: ExchangePoint(1e-3 * n, 0.0)
    )
    for seconds, interval in ((40.0, (25, 25)), (40.1, (17, 33))):
        points.seconds_to_simulate = lambda _, seconds=seconds: seconds
        border = cell._border(points)
        assert (border.samples, border.low, border.high) == (25, *interval)


def test_mechanisms_are_removed_while_the_limit_lasts():
    """Each simulation takes 10 s, that without reads and its epoch without exchange 20 s."""

    def removed(limit):
        cell = SimpleNamespace(max_samples=1, is_exact=False, limit_s=limit)
        cell.window = lambda _: SimpleNamespace(cost=10.0)
        points = Points(cell, print)
        points.spent = 60.0
        points.simulate_point = lambda _: ExchangePoint(1.0, 0.0)

        def simulate(_, name, changes):
            points.spent += 10.0 + 10.0 * (name == READS)
            return SimpleNamespace(point=ExchangePoint(0.75, 0.0))

        points._simulate = simulate
        return dict(points._seconds_saved(4, {name: {} for name in ("a", READS, "b")}))

    assert [len(removed(limit)) for limit in (69.9, 70.0, 89.9, 90.0, 100.0)] == [0, 1, 1, 2, 3]
    assert removed(100.0)["b"] == 0.25


@pytest.mark.parametrize(
    ("saved", "removals", "parts", "expected"),
    [
        # a tenth of 1 s is enough, and less is nothing by itself
        ({WIRE: 0.1, "b": 0.05}, 2, {}, (WIRE, 0.1, "host>leaf")),
        ({"a": 0.09, "b": 0.05}, 2, {}, (TOGETHER, 0.09, "")),
        ({"a": -0.1}, 1, {}, (TOGETHER, 0.0, "")),
        # of three removals two were simulated: what explains half of it may be all
        ({"a": 0.5, "b": 0.4}, 3, {}, ("a", 0.5, "")),
        ({"a": 0.49, "b": 0.4}, 3, {}, ("forms", None, "")),
        ({}, 1, {}, ("forms", None, "")),
        # host work is divided further
        ({HOST_WORK: 0.9}, 1, {"read": 0.2, "write": 0.6}, (f"{HOST_WORK}: write", 0.6, "")),
        ({HOST_WORK: 0.9}, 1, {"read": 0.05, "write": 0.09}, (TOGETHER, 0.09, "")),
        ({HOST_WORK: 0.9}, 1, {}, (HOST_WORK, 0.9, "")),
    ],
)
def test_what_ends_the_hiding_saves_a_tenth_of_what_is_added(
    saved, removals, parts, expected, monkeypatch
):
    monkeypatch.setattr("simshuffle.studies.mechanisms.points.with_variant", lambda *_: None)
    points = Points(SimpleNamespace(max_samples=9, is_exact=False, scenario=1, variant="x"), print)
    points.simulate_point = lambda _: ExchangePoint(1.0, 0.0)
    points._removals = lambda *_: dict.fromkeys(range(removals))
    points._host_work_removals = lambda _: parts
    points._seconds_saved = lambda _, tried: [*(parts if tried is parts else saved).items()]
    points._costliest_by_forms = lambda *_: "forms"
    points._slowest_tier = lambda _: "host>leaf"
    found = points.find_bottleneck(4)
    name, seconds, tier = expected
    assert (found["over_s"], found["bottleneck"], found["tier"]) == (1.0, name, tier)
    if seconds is None:
        assert math.isnan(found["saved_s"])
    else:
        assert found["saved_s"] == seconds
    nothing = points.find_bottleneck(None)
    assert (nothing["bottleneck"], nothing["tier"]) == ("", "") and math.isnan(nothing["over_s"])


def test_a_removal_saves_what_is_added_without_it_less(monkeypatch):
    cell = SearchCell(prepare_scenario(exchanging()).to_dict(), "own", 0.02, 1.25)
    seconds = {"5": 5.0, "2": 2.0}
    monkeypatch.setattr(search, "with_variant", lambda *words: words[-1].get("n", "5"))
    monkeypatch.setattr(search, "added_seconds", lambda _, scenario: seconds[scenario])
    assert cell.saved_by_forms(4, {"a": {"n": "2"}, "b": {}}) == (5.0, {"a": 3.0, "b": 0.0})


def test_the_tier_is_that_of_the_busiest_cable_without_what_others_send():
    """Of 90 bytes over 10 a second 80 are of others; 20 over 5 take 4 s, and 12 over 2 take 6 s."""
    points = Points(SimpleNamespace(max_samples=9, is_exact=False), print)
    columns = ["tier", "capacity", "nbytes"]
    cables = pd.DataFrame([("a>b", 10, 90), ("b>c", 5, 20), ("c>d", 2, 12)], columns=columns)
    free = pd.DataFrame([("a>b", 10, 80)], columns=columns)
    points._simulated = {
        (4, ""): SimpleNamespace(cables=cables),
        (4, WIRE): SimpleNamespace(cables=free),
    }
    assert points._slowest_tier(4) == "c>d"


def test_mechanisms_that_save_most_by_forms_come_first(monkeypatch):
    """Of 1 s, forms explain 0.4 s: what they do not know comes first; with 0.5 s it comes last."""
    monkeypatch.setattr(
        "simshuffle.studies.mechanisms.points.coarse", lambda _: dict.fromkeys("abc")
    )
    saved = {"a": 0.1, "b": 0.3, "c": 0.0, READS: -0.1}
    for explained, exact, expected in (
        (0.4, False, ["c", READS, "b", "a"]),
        (0.5, False, ["b", "a", "c", READS]),
        (0.4, True, ["a", "b", "c", READS]),
    ):
        cell = SimpleNamespace(max_samples=9, is_exact=exact)
        forms = (explained, saved)
        cell.saved_by_forms = lambda _, names, forms=forms: forms
        points = Points(cell, print)
        points.simulate_point = lambda _: ExchangePoint(1.0, 0.0)
        points._simulated = {(4, ""): SimpleNamespace(reads=True)}
        assert [*points._removals(None, 4)] == expected
        points._simulated = {(4, ""): SimpleNamespace(reads=False)}
        assert READS not in points._removals(None, 4)


@pytest.mark.parametrize(
    ("fraction", "sent"), [(0.015, 2), (0.0155, 2), (0.001, 1), (0.1, 12), (1.0, 120)]
)
def test_a_window_sends_as_large_a_part_as_the_epoch(fraction, sent):
    """12 iterations of 100, of a rank 120 of 1,000 samples; a whole number of them is sent."""
    how = {"kind": "partial_local_shuffle", "exchange_fraction": fraction}
    scenario = small(workload__dataset__num_samples=8000, workload__exchange=how)
    window = window_of(scenario, 12)
    assert window.scenario.workload.exchange.fraction == pytest.approx(sent / 120)
    assert (window.iterations, window.epoch_iterations, window.left_out) == (12, 100, 88)
    assert window_of(scenario, 99).left_out == 1
    whole = window_of(scenario, 100)
    assert (whole.left_out, whole.scenario.workload.exchange.fraction) == (0, fraction)


def test_a_window_stands_for_the_epoch():
    """It adds 0.5 s, and its 9 steady iterations 20 ms in the mean, as each of the 88 others does.
    It sends 2 samples in 12 iterations, or 16.67 in 100: 15 add 0.9 of that. Its six parts add 10,
    20, 30, 10, 20 and 30 ms: t of five degrees, and a deviation of sqrt(4/5) 10 ms."""
    how = {"kind": "partial_local_shuffle", "exchange_fraction": 0.015}
    window = window_of(small(workload__dataset__num_samples=8000, workload__exchange=how), 12)
    differences = np.array([9.0, 9.0, *[0.01] * 2, *[0.02] * 2, *[0.03] * 2, 0.01, 0.02, 0.03, 9.0])
    alone = SimulatedWindow(None, 3.0, np.ones(12))
    longer = SimulatedWindow(None, 3.5, 1.0 + differences)
    point = added(window, 15, longer, alone)
    assert point.over == pytest.approx(0.9 * (0.5 + 0.02 * 88))
    half_width = 2.570582 * 0.01 * math.sqrt(4 / 5 / 6)
    assert point.half_width == pytest.approx(0.9 * half_width * 88)
    assert added(replace(window, iterations=100), 15, longer, alone) == ExchangePoint(0.5, 0.0)


# ---------------------------------------------------------------- the scenario's own schedule


def swept(*exchanges, **axes):
    return tiny().model_copy(update={"sweep": {"workload.exchange": list(exchanges), **axes}})


PARTIAL = "partial_local_shuffle:exchange_fraction"


def hidden(scenario, **options):
    return hiding.request(HidingOptions(scenario=scenario, **options))


def test_hiding_answers_first_for_the_schedule_of_the_runs():
    runs = swept("global_shuffle", f"{PARTIAL}=0.1", f"{PARTIAL}=0.5", world_size=[4, 2])
    request = hidden(runs, variant=["wire"])
    result = engine.run(hiding.STUDY, request)
    limits = result.tables["limits"]
    # the sizes are those of the runs, the first row is how they exchange: once for both Q
    assert list(zip(limits["world_size"], limits["way"], strict=True)) == [
        (2, "own"),
        (2, "wire"),
        (4, "own"),
        (4, "wire"),
    ]
    assert request.values.titles == {"own": "partial streamlined"}
    own, _ = request.values.scenario_of_way(request.values.scenarios[0], "own")
    (run_,) = (r for name, r in runs.runs().items() if "0.5" in name and "@2" in name)
    assert own.workload.exchange.schedule == run_.workload.exchange.schedule
    first, other, *_ = result.verdict()
    assert first.startswith("On 2 ranks")
    assert "(partial streamlined)" in first
    assert other.startswith("Other schedules on 2 ranks, which no run of the scenario has: wire")


def test_each_schedule_of_the_runs_has_its_row_and_is_not_repeated_among_the_others():
    runs = swept(f"{PARTIAL}=0.1,schedule=authors", "importance_pair:exchange_fraction=0.1")
    request = hidden(runs)
    assert request.values.ways == ["own", "own 2", "pair", "encoded", "wire"]
    assert [*request.values.titles.values()] == ["partial authors", "IS-Pair streamlined"]


def test_hiding_of_runs_that_exchange_nothing_is_of_the_default_schedule_and_says_so():
    request = hidden(swept("global_shuffle", "local_shuffle"), variant=["wire"])
    assert request.values.ways == ["own", "wire"]
    said = "".join(engine.run(hiding.STUDY, request).verdict())
    assert "the default, as no run of the scenario exchanges samples" in said


def test_removals_that_save_nothing_have_no_number():
    limits = {"way": ["own"], "world_size": [4], "iterations": [5], "samples_of_rank": [40]}
    limits |= {"baseline_s": [10.0], "samples": [3], "samples_low": [3], "samples_high": [3]}
    limits |= {"exchange_fraction": [0.075], "added": [0.009], "steady": [True]}
    limits |= {"over_s": [0.12], "bottleneck": ["host work: read"], "saved_s": [0.1], "tier": [""]}
    points = pd.DataFrame(
        [("", 0.012), ("host work", 0.002), ("wire", 0.0125), ("host work: read", 0.002)],
        columns=["removed", "added"],
    ).assign(way="own", world_size=4, samples=4)
    tables = {"limits": pd.DataFrame(limits), "points": points}
    *_, table = mechanisms_text.hiding_parts(tables, {})
    cells = {str(column.header): [*column.cells] for column in table.columns}
    assert cells["longer"] == ["120.0"]  # 0.12 s, all that four samples add
    assert cells["host\nwork"] == ["100.0"]
    assert cells["wire"] == [""]  # it took 5 ms longer without: no negative saving


def test_results_of_earlier_versions_are_read(tmp_path):
    wanted = searched(world_size=[4], variant=["wire"], tolerance=0.5)
    folder = tmp_path / "old"
    engine.run(hiding.STUDY, wanted).save(folder, draw=False)
    meta = json.loads((folder / "meta.json").read_text())
    meta["asked"] = {"ways": ["own", "wire"], "tolerance": 0.5}
    (folder / "meta.json").write_text(json.dumps(meta))
    edited(lambda table: table.drop(columns=["samples_low", "samples_high"]))(folder / "limits.csv")
    old = read_folder(folder)
    assert (old.tables["limits"]["samples_high"] == old.tables["limits"]["samples"]).all()
    assert [part for part in old.parts() if isinstance(part, str)]
    again = hiding.repeat(folder, meta).values
    assert again.exact  # all searches of earlier versions were
    assert again.ways == ("own", "wire")


# ---------------------------------------------------------------------------------- damaged folders


def edited(change):
    """A damage: what becomes of a table."""
    return lambda path: change(pd.read_csv(path, dtype={"state": str})).to_csv(path, index=False)


FIT = "must fit"


@pytest.mark.parametrize(
    ("study", "name", "damage", "said"),
    [
        ("ablation", "runs", edited(lambda t: t.head(0)), FIT),
        ("ablation", "runs", edited(lambda t: t.head(-1)), FIT),
        ("ablation", "runs", edited(lambda t: pd.concat([t, t])), "repeat state, seed, label"),
        ("ablation", "runs", edited(lambda t: t.assign(state="0")), "repeat"),
        (
            "ablation",
            "runs",
            edited(lambda t: t.assign(seconds=1e200)),
            "1e+100",
        ),
        ("ablation", "runs", edited(lambda t: t[t["state"] != "11"]), FIT),
        ("ablation", "alone", edited(lambda t: t.head(1)), FIT),
        ("ablation", "alone", edited(lambda t: t.assign(seed=7)), FIT),
        ("ablation", "ends", edited(lambda t: t.tail(1)), FIT),
        ("ablation", "switches", edited(lambda t: t.head(0)), FIT),
        ("ablation", "switches", edited(lambda t: t.assign(switch=[ALL, "x"])), FIT),
        ("hiding", "limits", edited(lambda t: t.head(0)), FIT),
        ("hiding", "limits", edited(lambda t: t.tail(1)), ""),
        ("hiding", "limits", edited(lambda t: t.head(5)), FIT),
        ("hiding", "limits", edited(lambda t: t.assign(way="walk")), "way: must be one of"),
        ("hiding", "points", edited(lambda t: t.head(1)), FIT),
    ],
)
def test_tables_that_do_not_fit_are_refused(study, name, damage, said, request, tmp_path, capsys):
    folder = shutil.copytree(request.getfixturevalue(f"{study}_once"), tmp_path / "mine")
    damage(folder / f"{name}.csv")
    assert main(["results", "plot", str(folder), "--out", str(tmp_path / "drawn")]) == 2 * bool(
        said
    )
    message = capsys.readouterr().err
    assert said in message and (f"{name}.csv" in message or not said)


@pytest.fixture(scope="module")
def ablation_once(tmp_path_factory):
    start = "partial_local_shuffle:schedule=authors"
    end = f"{start}:barriers=none"
    also, alone = [("payload", "encoded")], [("partner_scope", "host")]
    request = asked(start=start, end=end, also=also, alone=alone, seeds=1)
    return engine.run(STUDY, request).save(tmp_path_factory.mktemp("ablation") / "mine")


def test_an_ablation_in_which_nothing_takes_time_is_drawn(ablation_once, tmp_path):
    folder = shutil.copytree(ablation_once, tmp_path / "mine")
    for name in ("runs", "alone"):
        edited(lambda t: t.assign(seconds=0.0))(folder / f"{name}.csv")
    assert main(["results", "plot", str(folder)]) == 0


@pytest.fixture(scope="module")
def hiding_once(tmp_path_factory):
    found = engine.run(hiding.STUDY, searched(world_size=[2, 4], variant=["pair", "authors"]))
    assert found.tables["limits"]["over_s"].notna().any()
    return found.save(tmp_path_factory.mktemp("hiding") / "mine")
