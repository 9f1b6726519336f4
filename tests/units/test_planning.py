"""``simshuffle plan``: runs that can be repeated, accuracy that is learned, budgets, and what it
refuses."""

from __future__ import annotations

import json
import shlex

import pytest

from simshuffle import plan_training
from simshuffle.cli import main
from simshuffle.results.table_io import read_csv
from simshuffle.studies.planning.curves import curves, setting_of
from tests.small import small

TINY = ("world_size=8", "workload.dataset.num_samples=512", "sweep={}")
SET = [word for value in TINY for word in ("--set", value)]
LEARNED = [
    *(("global", "", epoch, accuracy) for epoch, accuracy in ((10, 0.70), (20, 0.80))),
    *(("local", "", epoch, accuracy) for epoch, accuracy in ((10, 0.60), (20, 0.65))),
    *(("partial", "0.3", epoch, accuracy) for epoch, accuracy in ((10, 0.68), (20, 0.79))),
]


@pytest.fixture
def learned(tmp_path):
    path = tmp_path / "learned.csv"
    rows = [",".join(map(str, row)) for row in LEARNED]
    path.write_text("\n".join(["strategy,exchange_fraction,epoch,accuracy", *rows, ""]))
    return path


def strategies(**options):
    exchange = options.pop("own", "local_shuffle")
    return plan_training(small(workload__exchange=exchange), progress=False, **options)


def test_every_number_comes_from_a_run_that_can_be_repeated(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["plan", "quickstart", *SET, "--price", "host-hour=3,ssd-tb=80", "--out", "plan"]
    assert main([*words, "--quiet"]) == 0
    table, probes = (read_csv(tmp_path / "plan" / f"{n}.csv") for n in ("strategies", "probes"))
    rows = [table.iloc[0], table.iloc[-1]]
    rows += [probes[probes["question"] == name].iloc[-1] for name in set(probes["question"])]
    assert len(rows) == 4
    for number, row in enumerate(rows):
        again = shlex.split(row["command"])
        assert again[0] == "simshuffle"
        assert main([*again[1:], "--out", f"run{number}", "--quiet"]) == 0
        epochs = read_csv(tmp_path / f"run{number}" / "epochs.csv")
        assert epochs["epoch_s"].iloc[-1] == pytest.approx(row["epoch_s"], rel=1e-9)


FAILING = {
    "failures": {"kind": "exponential", "mean_between": "10 d", "repair": {"mean": "2 d"}},
    "workload.checkpoint": {
        "period": "10 min", "mode": "synchronous", "layout": "whole", "to": "pfs",
    },
}  # fmt: skip


def test_saves_and_spares_are_those_of_months_that_can_be_repeated(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    values = [word for k, v in FAILING.items() for word in ("--set", f"{k}={json.dumps(v)}")]
    words = [*SET, *values, "--strategy", "local_shuffle", "--out", "plan", "--quiet"]
    assert main(["plan", "quickstart", *words]) == 0
    row = read_csv(tmp_path / "plan" / "strategies.csv").iloc[0]
    # hours and hosts with what fails: 2 hosts of the ranks and the spares
    assert row["cost"] == pytest.approx(row["hours"] * (2 + row["spares"]))
    assert 0.9 < row["goodput"] < 1.0
    assert "spare hosts" in capsys.readouterr().out
    waiting = {}
    for spares in (int(row["spares"]), int(row["spares"]) - 1):
        again = row["month"].replace(f"spares={row['spares']:.0f}", f"spares={spares}")
        assert main([*shlex.split(again)[1:], "--out", f"month{spares}", "--quiet"]) == 0
        days = read_csv(tmp_path / f"month{spares}" / "days.csv")
        waiting[spares] = days["waiting_days"].sum() / days["days"].sum()
        if spares == row["spares"]:
            assert days["goodput"].mean() == pytest.approx(row["goodput"], rel=1e-6)
    most, least = sorted(waiting.values(), reverse=True)
    assert least <= 0.01 < most


def test_without_failures_it_says_which_keys_give_more():
    said = str(strategies(strategy=["local_shuffle"]))
    assert "With failures and workload.checkpoint it says how often to save" in said


def test_a_turn_can_be_planned(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    named = ["--strategy", "global_shuffle:source=pfs", "--strategy", "local_shuffle"]
    values = [*SET, "--set", "workload.dataset.num_samples=4096"]
    values += ["--set", "workload.exchange=local_shuffle"]
    rate = ["--set", "cluster.parallel_file_system.open_rate=1 k/s"]
    assert main(["plan", "quickstart", *values, *rate, *named, "--out", "plan", "--quiet"]) == 0
    turns = read_csv(tmp_path / "plan" / "turns.csv").set_index("input")
    turn = turns.loc["step time"]
    assert (turn["before"], turn["after"]) == ("local", "global-pfs")
    again = [*shlex.split(turn["command"])[1:], *named, "--out", "turned", "--quiet"]
    assert main(again) == 0
    found = read_csv(tmp_path / "turned" / "strategies.csv")
    cost = found.set_index("strategy")["cost"]
    assert cost["global-pfs"] == pytest.approx(cost["local"], rel=0.1)


def test_the_cheapest_that_reaches_the_target_is_chosen(learned):
    table = strategies(target_accuracy=learned, target=0.78).tables["strategies"]
    table = table.set_index("strategy")
    assert table["epochs"].fillna(0).to_dict() == {
        "global-pfs": 20, "global-ssd": 20, "local": 0, "partial-0.3": 20,
    }  # fmt: skip
    assert table["cost"].isna().to_dict()["local"]
    chosen = table[table["chosen"]].index.item()
    assert table.loc[chosen, "cost"] == table["cost"].min()
    # fewer epochs are needed of a lower target, by all that reach it
    named = ["global_shuffle:source=pfs", "local_shuffle"]
    lower = strategies(target_accuracy=learned, target=0.66, strategy=named).tables["strategies"]
    assert lower["epochs"].fillna(0).tolist() == [10, 0]


def test_the_default_target_is_global_less_one_point(learned):
    named = ["global_shuffle:source=pfs", "local_shuffle"]
    result = strategies(target_accuracy=learned, strategy=named)
    assert result.meta["asked"]["target"] == pytest.approx(0.79)
    assert "to an accuracy of 0.79" in result.verdict()[0]
    assert "local does not reach the target" in " ".join(result.verdict())


def test_results_of_tta_are_curves_too(results_made):
    folder = results_made("time_to_accuracy")
    assert {name for name, _ in curves(folder)} == {"global", "partial"}


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("global (PFS)", ("global", None)),
        ("global_shuffle", ("global", None)),
        ("local", ("local", 0.0)),
        ("partial 0.1", ("partial", 0.1)),
        ("partial-0.1", ("partial", 0.1)),
        ("IS-Pair 0.3", ("IS-Pair", 0.3)),
    ],
)
def test_a_curve_is_called_as_tables_call_it(name, setting):
    assert setting_of(name, None) == setting


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
    least = f"the least that would do is a cost of {cost['local']:,.4g}, of local."
    assert none.verdict()[0].endswith(least)


def test_a_scenario_whose_own_strategy_has_no_room_is_planned_all_the_same(capsys, tmp_path):
    words = ["--set", "cluster.ssd.capacity=1 MB", "--out", str(tmp_path / "plan"), "--json"]
    assert (
        main(["plan", "quickstart", *SET, "--set", "workload.exchange=local_shuffle", *words]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert [row["strategy"] for row in found["strategies"] if row["fits"]] == ["global-pfs"]
    assert found["verdict"][0].startswith("Train with global-pfs: ")
    assert "do not fit" in found["verdict"][1]


REFUSED = {
    "a price that is not known": (
        ["--price", "host-hours=1"], ("--price host-hours", "no such price", "'host-hour'"),
    ),
    "a negative price": (["--price", "host-hour=-1"], ("must be a price", "-1")),
    "a price without a number": (["--price", "host-hour"], ("NAME=PRICE",)),
    "no price of hosts": (["--price", "ssd-tb=80"], ("--price host-hour", "must be given")),
    "a negative budget": (["--budget", "-1"], ("--budget", "greater than or equal to 0")),
    "a target without accuracy": (["--target", "0.7"], ("--target-accuracy",)),
    "no such curve": (["--target-accuracy", "none.csv"], ("no such file", "none.csv")),
    "a strategy that is not known": (["--strategy", "glocal_shuffle"], ("no such kind",)),
    "the same strategy twice": (
        ["--strategy", "local_shuffle", "--strategy", "local_shuffle:source=ssd"],
        ("once", "local"),
    ),
    "none that fits": (
        ["--strategy", "local_shuffle", "--set", "cluster.ssd.capacity=1 MB",
         "--set", "workload.exchange=global_shuffle:source=pfs"],
        ("must fit the hosts", "cluster.ssd.capacity"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_planned_is_refused_at_once(case, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words, said = REFUSED[case]
    assert main(["plan", "quickstart", *SET, *words]) == 2
    found = " ".join(capsys.readouterr().err.split())
    assert all(word in found for word in said), found
    assert "Traceback" not in found
    assert not (tmp_path / "results").exists()


WRONG = {
    "no such strategy": (
        ["glbal,,1,0.5"], ["--target", "0.5"], ("no such strategy", "Did you mean 'global'"),
    ),
    "no Q": (["partial,,1,0.5"], ["--target", "0.5"], ("exchange_fraction", "of partial")),
    "no accuracy": (["global,,1,much"], [], ("line 2", "accuracy=much")),
    "an accuracy above 1": (["global,,1,70"], [], ("line 2",)),
    "no rows": ([], [], ("none",)),
    "no global shuffle": (["local,,1,0.5"], [], ("--target", "no global shuffle")),
    "a target that nothing reaches": (
        ["global,,1,0.5"], ["--target", "0.6"], ("must be reached", "0.5", "0.6"),
    ),
    "a strategy without curve": (
        ["global,,1,0.5"], ["--strategy", "local_shuffle"], ("there is a curve of: global",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_curves_that_say_nothing_are_refused(case, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows, words, said = WRONG[case]
    lines = ["strategy,exchange_fraction,epoch,accuracy", *rows, ""]
    (tmp_path / "learned.csv").write_text("\n".join(lines), encoding="utf-8")
    assert main(["plan", "quickstart", *SET, "--target-accuracy", "learned.csv", *words]) == 2
    found = " ".join(capsys.readouterr().err.split())
    assert all(word in found for word in said), found
    assert "Traceback" not in found
