"""Ablation and search end to end on tiny scenarios; result folders; bad input; processes."""

import importlib
import json
import multiprocessing

import numpy as np
import pandas as pd
import pytest

from simshuffle import run
from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.studies.ablation import ablate, folder, hiding, text
from simshuffle.studies.ablation.pool import outcomes
from simshuffle.studies.ablation.shapley import ALL, contributions
from simshuffle.studies.ablation.switches import differences, flat
from tests.small import small

TINY = {
    "cluster": "small-fat-tree",
    "workload.allreduce.rings": "1",
    "world_size": "4",
    "workload.dataset.num_samples": "160",
    "workload.local_batch_size": "8",
    "workload.exchange": "partial_local_shuffle:exchange_fraction=0.5",
}
SET = [part for key, value in TINY.items() for part in ("--set", f"{key}={value}")]


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


@pytest.fixture(scope="module")
def request_():
    return ablate.request(
        exchanging(),
        "importance_exchange",
        "importance_pair",
        [("payload", "encoded")],
        [("partner_scope", "host")],
        2,
    )


@pytest.fixture(scope="module")
def tables(request_):
    return ablate.ablate(request_, processes=1)


# ----------------------------------------------------------------------------------------- ablation


def test_the_switches_are_what_the_strategies_differ_in(request_):
    assert [(s.key, s.start, s.end) for s in request_.switches] == [
        ("partner_rule", "random", "importance_sorted"),
        ("partner_lifetime", "sample", "epoch"),
        ("samples_per_message", 1, "iteration"),
        ("barriers", "message", "iteration"),
        ("payload", "decoded", "encoded"),
    ]


def test_combinations_that_cannot_be_are_left_out(request_):
    # of 32: several samples in a message need a partner that stays
    assert len(request_.states) == 24
    assert all(state[1] or not state[2] for state in request_.states)


def test_partial_local_shuffle_is_importance_exchange_with_random_samples():
    kinds = ("partial_local_shuffle", "importance_exchange")
    partial, importance = (
        tiny(workload__exchange=f"{kind}:exchange_fraction=0.5").workload.exchange for kind in kinds
    )
    assert [switch.key for switch in differences(flat(partial), flat(importance))] == ["selection"]


def test_the_ends_are_those_of_a_run_of_the_strategies(request_, tables):
    epochs = tables["runs"][
        (tables["runs"]["label"] == "epoch") & (tables["runs"]["seed"] == request_.start.seed)
    ].set_index("state")["seconds"]
    for state, kind in (("00000", "importance_exchange"), ("11110", "importance_pair")):
        result = run(
            request_.start.with_values({"workload.exchange": f"{kind}:exchange_fraction=0.5"})
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


def test_what_cannot_be_first_or_last_is_left_empty(tables):
    found = contributions(tables["switches"], tables["runs"]).set_index(["label", "switch"])
    assert found.loc[("epoch", "payload"), "first_s"] < 0
    assert np.isnan(found.loc[("epoch", "samples_per_message"), "first_s"])
    assert np.isnan(found.loc[("epoch", "partner_lifetime"), "last_s"])


def test_lifetimes_between_are_simulated_alone(request_, tables):
    assert ("partner_lifetime", "iteration") in request_.alone
    assert set(tables["alone"]["key"]) == {"partner_lifetime", "partner_scope"}
    of = folder.outcome("ablation", tables, {}, "").all_tables()["changes"]
    host = of[(of["key"] == "partner_scope") & (of["label"] == "epoch")]
    assert set(host["base"]) == {"start", "end"}
    assert (host["min_s"] <= host["change_s"]).all()


def test_two_processes_find_what_one_finds():
    asked = ablate.request(
        exchanging(),
        "partial_local_shuffle",
        "partial_local_shuffle:schedule.barriers=none",
        [],
        [],
        1,
    )
    shares = []
    together = ablate.ablate(asked, processes=2, progress=shares.append)
    pd.testing.assert_frame_equal(together["runs"], ablate.ablate(asked, processes=1)["runs"])
    assert shares == [0.5, 1.0]


@pytest.mark.parametrize(
    ("start", "end", "also", "alone", "words"),
    [
        (
            "importance_exchange",
            "importance_pair:exchange_fraction=0.25",
            [],
            [],
            ["--end", "as much as the start", "0.25"],
        ),
        ("importance_pair", "importance_pair", [], [], ["no difference", "--also"]),
        ("local_shuffle:source=ssd", "importance_pair", [], [], ["--start", "exchange"]),
        (
            "importance_exchange",
            "importance_pair",
            [("payloud", "encoded")],
            [],
            ["--also payloud", "payload"],
        ),
        (
            "importance_exchange",
            "importance_pair",
            [("barriers", "none")],
            [],
            ["--also barriers", "already"],
        ),
        (
            "importance_exchange",
            "importance_pair",
            [("overlap", True)],
            [],
            ["--also overlap", "differ"],
        ),
        (
            "importance_exchange",
            "importance_pair",
            [("payload", "zipped")],
            [],
            ["payload", "zipped"],
        ),
        (
            "importance_exchange",
            "importance_pair",
            [],
            [("scope", "leaf")],
            ["--alone scope", "partner_scope"],
        ),
        (
            "importance_exchange",
            "importance_pair",
            [],
            [("partner_scope", "floor")],
            ["--alone partner_scope=floor", "floor"],
        ),
        ("importance_exchange", "importance_pare", [], [], ["--end", "importance_pare"]),
        (
            "partial_local_shuffle:schedule.partner_rule=importance_sorted,"
            "schedule.rank_importance=mean",
            "partial_local_shuffle:schedule.partner_lifetime=epoch,"
            "schedule.samples_per_message=iteration",
            [("samples_per_message", 2)],
            [],
            ["--also samples_per_message", "already"],
        ),
    ],
)
def test_bad_input_of_an_ablation_is_said(start, end, also, alone, words):
    with pytest.raises(InputError) as caught:
        ablate.request(exchanging(), start, end, also, alone)
    for word in words:
        assert word in str(caught.value)


def test_a_switch_that_another_needs_off_comes_first():
    start = "partial_local_shuffle:schedule.partner_lifetime=epoch,schedule.partners_per_epoch=2"
    end = "partial_local_shuffle:schedule.partner_lifetime=sample"
    # the lifetime must be switched after the number of partners: one order is left
    assert len(ablate.request(exchanging(), start, end, [], []).states) == 3


# ------------------------------------------------------------------------------------- command line


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_ablate_writes_a_folder_that_is_read_and_drawn_again(here, capsys):
    asked = ["ablate", "quickstart", *SET, "--seeds", "1", "--processes", "1", "--out", "mine"]
    assert main(asked) == 0
    shown = capsys.readouterr()
    assert "samples_per_message cannot be switched first" in shown.out
    assert "14 simulations" in shown.err
    assert main(asked) == 0
    assert "nothing was simulated" in capsys.readouterr().err
    assert main(["plot", "mine", "--out", "again"]) == 0
    for name in ("waterfall.png", "waterfall.pdf"):
        assert (here / "again" / name).read_bytes() == (here / "mine" / name).read_bytes()
    assert set(json.loads((here / "mine" / "columns.json").read_text())) == {
        path.name for path in (here / "mine").glob("*.csv")
    }
    stored = folder.read(here / "mine")
    pd.testing.assert_frame_equal(
        contributions(stored.tables["switches"], stored.tables["runs"]),
        pd.read_csv(here / "mine/contributions.csv"),
    )


def test_hiding_writes_a_folder_that_is_read_and_drawn_again(here, capsys):
    asked = [
        "hiding",
        "quickstart",
        *SET,
        "--world-size",
        "2",
        "--world-size",
        "4",
        "--way",
        "pair",
        "--way",
        "wire",
        "--out",
        "mine",
    ]
    assert main([*asked, "--processes", "1"]) == 0
    shown = capsys.readouterr().out
    assert "Largest hidden Q" in shown
    assert main([*asked, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["limits"]
    assert {(row["way"], row["world_size"]) for row in rows} == {
        (way, size) for way in ("pair", "wire") for size in (2, 4)
    }
    assert main(["plot", "mine", "--out", "again"]) == 0
    for name in ("hiding.png", "hiding.pdf"):
        assert (here / "again" / name).read_bytes() == (here / "mine" / name).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ablate", "quickstart", *SET, "--also", "payload"], ["--also", "KEY=VALUE"]),
        (["ablate", "quickstart", *SET, "--end", "importance_exchange"], ["no difference"]),
        (["ablate", "nowhere"], ["nowhere"]),
        (["hiding", "quickstart", *SET, "--way", "wired"], ["--way", "wire"]),
        (
            ["hiding", "quickstart", "--set", "workload.exchange=local_shuffle", "--way", "own"],
            ["--way", "local_shuffle"],
        ),
        (["hiding", "quickstart", *SET, "--world-size", "1"], ["--world-size", "2 ranks"]),
        (["hiding", "quickstart", *SET, "--world-size", "100000"], ["world_size"]),
    ],
)
def test_bad_input_ends_with_2_and_leaves_nothing(arguments, words, here, capsys):
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    for word in words:
        assert word in message
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(("module", "verb"), [("ablate", "ablate"), ("hiding", "hiding")])
def test_an_interrupt_leaves_nothing(module, verb, here, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(
        importlib.import_module(f"simshuffle.studies.ablation.{module}"), "outcomes", interrupted
    )
    assert main([verb, "quickstart", *SET]) == 130
    assert "nothing was written" in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_a_folder_that_lacks_a_table_is_said(here, capsys):
    (here / "mine").mkdir()
    (here / "mine" / "meta.json").write_text(json.dumps({"kind": "ablation"}))
    assert folder.holds(here / "mine")
    assert main(["plot", "mine"]) == 2
    assert "no scenario.yaml" in capsys.readouterr().err


def test_unsteady_limits_are_said(monkeypatch):
    monkeypatch.setattr(
        hiding, "largest", lambda added, tolerance, most: (int(added(1) <= tolerance), False)
    )
    asked = hiding.scenarios(exchanging(), [4])
    found = hiding.hiding(asked, ["pair"], 1.0, processes=1)
    assert any(
        "not monotone" in part for part in text.parts("hiding", found) if isinstance(part, str)
    )


# ---------------------------------------------------------------------------------------- processes


def test_outcomes_come_in_the_order_of_what_was_given():
    assert outcomes(abs, [-3, 2, -1], processes=2) == [3, 2, 1]
    assert outcomes(abs, [-3], processes=1) == [3]


def test_what_is_raised_on_the_way_stops_the_processes():
    def interrupt(share):
        raise KeyboardInterrupt

    before = set(multiprocessing.active_children())
    with pytest.raises(KeyboardInterrupt):
        outcomes(abs, [-1, -2, -3], processes=2, progress=interrupt)
    assert set(multiprocessing.active_children()) == before
    with pytest.raises(TypeError):
        outcomes(abs, ["a", 1], processes=2)
