"""Two results side by side: what was asked, what came out, and what cannot be compared."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import simshuffle
from simshuffle import run
from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.report.report import by_cause, part_name
from simshuffle.report.side_by_side import values
from simshuffle.studies.comparison import (
    ComparedSide,
    _requests_of_documents,
    compare,
    read_side,
)
from simshuffle.studies.comparison_tables import _join_values
from simshuffle.studies.simulation import sweep
from simshuffle.studies.simulation.verb import SweepOptions
from simshuffle.study import engine
from simshuffle.study.matching import flat, match_runs, pair_names, table_of_differing_requests
from simshuffle.study.registry import kinds
from simshuffle.study.study import Result
from tests.small import small

KEYS = ["run", "epoch", "label"]
SIZE = {"workload__dataset__num_samples": 160, "world_size": 4, "epochs": 2}
NONE = "A and B: no interval: run with --interval."
BOTH = ("local_shuffle", "partial_local_shuffle:exchange_fraction=0.3")


def result_of_side(one: ComparedSide) -> Result:
    assert one.result is not None
    return one.result


def saved(folder: Path, *exchanges: str, **values: Any) -> str:
    base = small(**{**SIZE, **values})
    sweep = {"workload.exchange": list(exchanges)} if exchanges else {}
    return str(run(base.model_copy(update={"sweep": sweep})).save(folder, draw=False))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    place = tmp_path_factory.mktemp("results")
    return {
        "base": saved(place / "base", *BOTH),
        "slow": saved(place / "slow", *BOTH, cluster__topology__link_bandwidth="1 GB/s"),
        "half": saved(place / "half", *BOTH, world_size=2),
        "local": saved(place / "local", workload__exchange="local_shuffle"),
    }


def test_keys_that_differ_are_named_once_where_all_runs_share_them(folders):
    found = compare(read_side(folders["base"]), read_side(folders["slow"]))
    (row,) = found.asked.to_dict("records")
    assert row["run"] == ""
    assert row["key"] == "cluster.topology.link_bandwidth"
    assert row["b"] == "1 GB/s" != row["a"]
    assert list(found.notes) == [NONE]
    assert set(found.tables) == {"seconds"}  # no rates of epochs of one length


def test_a_key_that_differs_for_one_run_alone_names_it(tmp_path):
    others = (BOTH[0], "partial_local_shuffle:exchange_fraction=0.4")
    found = compare(
        read_side(saved(tmp_path / "a", *BOTH)), read_side(saved(tmp_path / "b", *others))
    )
    (row,) = found.asked.to_dict("records")
    assert (row["run"], row["key"], row["a"], row["b"]) == (
        "partial-0.3 streamlined @4",
        "workload.exchange.exchange_fraction",
        0.3,
        0.4,
    )
    assert found.notes[0] == (
        "Compared because most alike: 'partial-0.3 streamlined @4' with 'partial-0.4 streamlined"
        " @4'. They differ in workload.exchange.exchange_fraction."
    )


def test_seconds_stand_beside_each_other_with_their_difference(folders):
    sides = read_side(folders["base"]), read_side(folders["slow"])
    found = compare(*sides).tables["seconds"].set_index(["run", "epoch", "label"])
    for letter, of in zip("ab", sides, strict=True):
        tables = result_of_side(of).tables
        for row in tables["epochs"].to_dict("records"):
            assert found.loc[(row["run"], row["epoch"], "epoch"), letter] == row["epoch_s"]
        for row in by_cause(tables["breakdown"]).to_dict("records"):
            label = part_name(row["label"], row["waiting"])
            assert found.loc[(row["run"], row["epoch"], label), letter] == row["seconds"]
    row = found.loc[("partial-0.3 streamlined @4", 2, "epoch")]
    assert row["b"] > row["a"]
    assert row["difference"] == pytest.approx(100 * (row["b"] / row["a"] - 1))


def test_a_result_differs_from_itself_in_nothing(folders, capsys):
    found = compare(read_side(folders["base"]), read_side(folders["base"]))
    assert found.asked.empty
    assert found.versions.empty
    assert (found.tables["seconds"]["difference"] == 0).all()
    assert main(["compare", folders["base"], folders["base"]]) == 0
    out = capsys.readouterr().out
    assert "No inputs differ." in out
    assert "seconds: 22 of 22 values are the same, bit for bit." in out
    assert "GE+WU: gradient exchange (allreduce) and weight update" in out


def test_runs_at_other_world_sizes_are_matched_and_that_is_said(folders):
    found = compare(read_side(folders["base"]), read_side(folders["half"]))
    assert list(found.asked["key"]) == ["world_size"]
    assert len(found.tables["seconds"]) == 22
    assert list(found.notes) == [
        "Epochs differ in length (local @4, epoch 1): A has 160 samples in 4 iterations,"
        " B 160 samples in 8 iterations; both train on the same number of samples.",
        "Compared because most alike: 'local @4' with 'local @2', 'partial-0.3 streamlined @4' with"
        " 'partial-0.3 streamlined @2'. They differ in world_size.",
        NONE,
    ]
    epochs = result_of_side(read_side(folders["half"])).tables["epochs"].set_index(["run", "epoch"])
    wanted = epochs.loc[("partial-0.3 streamlined @2", 2), "epoch_s"]
    seconds = found.tables["seconds"].set_index(["run", "epoch", "label"])
    assert seconds.loc[("partial-0.3 streamlined @4", 2, "epoch"), "b"] == wanted


def test_a_run_that_one_of_them_has_is_left_out_and_named(folders):
    found = compare(read_side(folders["base"]), read_side(folders["local"]))
    (row,) = found.asked.to_dict("records")
    assert (row["key"], row["b"]) == ("workload.exchange.kind", "local_shuffle")
    assert row["a"] == ["local_shuffle", "partial_local_shuffle"]
    assert set(found.tables["seconds"]["run"]) == {"local @4"}
    assert found.notes[0] == "Only A has these runs: partial-0.3 streamlined @4."


def test_names_that_are_not_equally_many_are_not_guessed():
    pairs, notes = pair_names(["a", "b", "c"], ["b", "d"], "runs")
    assert pairs == {"b": "b"}
    assert notes == ["Only A has these runs: a, c.", "Only B has these runs: d."]


def test_results_of_different_kinds_are_refused(results_made, capsys):
    assert main(["compare", *(str(results_made(kind)) for kind in ("simulation", "sweep"))]) == 2
    assert "same verb; got simulation and sweep" in capsys.readouterr().err


def swept(folder: Path, sizes: list[int], **values: Any) -> ComparedSide:
    asked = SweepOptions(scenario=small(**SIZE, **values), over={"world_size": sizes}, seeds=2)
    return read_side(str(engine.run(sweep.STUDY, sweep.request(asked)).save(folder, draw=False)))


def test_sweeps_are_compared_by_label_and_mean(tmp_path):
    sides = [
        swept(tmp_path / name, [2, 4], cluster__topology__link_bandwidth=bandwidth)
        for name, bandwidth in (("a", "4 GB/s"), ("b", "1 GB/s"))
    ]
    found = compare(*sides)
    assert list(found.asked["key"]) == ["cluster.topology.link_bandwidth"]
    seconds = found.tables["seconds"].set_index(["run", "epoch", "label"])
    for letter, of in zip("ab", sides, strict=True):
        table = result_of_side(of).tables["sweep"]
        for (run_, epoch), rows in table.groupby(["label", "epoch"]):
            wanted = rows["epoch_s"].mean()
            assert seconds.loc[(run_, epoch, "epoch"), letter] == pytest.approx(wanted)


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind != "congestion"])
def test_every_kind_of_result_can_be_compared_with_itself(kind, results_made, capsys):
    folder = results_made(kind)
    found = compare(read_side(str(folder)), read_side(str(folder)))
    assert found.asked.empty
    assert found.tables
    assert any(len(table) for table in found.tables.values())
    assert all((table["difference"] == 0).all() for table in found.tables.values())
    assert main(["compare", str(folder), str(folder), "--json"]) == 0
    text = capsys.readouterr().out
    said = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert said["asked"] == []


def test_a_difference_to_zero_is_empty_and_no_infinity(folders):
    a, b = read_side(folders["base"]), read_side(folders["base"])
    result = result_of_side(b)
    table = result.tables["breakdown"].copy()
    table.loc[table["label"] == "EXCHANGE", "seconds"] = 1.0
    b = replace(b, result=replace(result, tables={**result.tables, "breakdown": table}))
    seconds = compare(a, b).tables["seconds"].set_index(["run", "epoch", "label"])
    assert pd.isna(seconds.loc[("local @4", 1, "EXCHANGE"), "difference"])
    said = json.dumps(compare(a, b).as_json(), allow_nan=False, default=lambda value: value.item())
    assert '"difference": null' in said


def test_scenarios_are_compared_by_what_they_ask(capsys):
    assert main(["compare", "quickstart", "quickstart", "--to", "markdown"]) == 0
    out = capsys.readouterr().out
    assert "No inputs differ." in out
    assert "A scenario has no results" in out


def test_other_versions_are_named(folders, tmp_path):
    b = read_side(folders["base"])
    result = result_of_side(b)
    meta = {**result.meta, "versions": {**result.meta["versions"], "numpy": "0.1"}}
    other = replace(b, result=replace(result, meta=meta))
    (row,) = compare(read_side(folders["base"]), other).versions.to_dict("records")
    assert (row["key"], row["b"]) == ("versions.numpy", "0.1")


def test_values_are_flattened_to_dotted_keys():
    given = {"a": {"b": 1, "c": [1, 2]}, "d": [{"e": 2}, {"e": 3}], "f": {}, "g": None}
    assert flat(given) == {"a.b": 1, "a.c": [1, 2], "d.0.e": 2, "d.1.e": 3, "f": {}, "g": None}
    assert flat({}) == {}


def test_a_folder_of_an_older_version_is_compared_by_its_documents(folders, tmp_path):
    """Its scenarios are not valid any more."""
    folder = result_of_side(read_side(folders["base"])).save(tmp_path / "old", draw=False)
    text = (folder / "scenario.yaml").read_text()
    (folder / "scenario.yaml").write_text(f"{text}gone: 1\n")
    with pytest.raises(InputError):
        simshuffle.load_scenario(folder / "scenario.yaml")
    found = compare(read_side(str(folder)), read_side(str(folder)))
    assert found.asked.empty
    assert len(found.tables["seconds"]) == 22
    texts = {"a.yaml": "name: x\nk: 1\n---\nname: x\nk: 2\n", "b.yaml": "[3, 4]"}
    result = replace(result_of_side(read_side(folders["base"])), documents=texts)
    assert {name: values.get("k") for name, values in _requests_of_documents(result).items()} == {
        "x": 1,
        "x 2": 2,
        "b.yaml": None,
    }


# --------------------------------------------------------------- results without a run in common


def test_results_without_a_run_in_common_are_not_called_the_same(folders, tmp_path, capsys):
    """Another machine, data set and number of ranks: all of that is said, and the run of the same
    strategy is compared, its rate too: an epoch of B has twice the samples."""
    other = saved(
        tmp_path / "other",
        workload__exchange=BOTH[1],
        cluster__name="other",
        workload__dataset__num_samples=320,
        world_size=2,
    )
    found = compare(read_side(folders["base"]), read_side(other))
    asked = found.asked.set_index("key")
    assert list(asked.index[:3]) == ["cluster.name", "world_size", "workload.dataset.num_samples"]
    assert tuple(asked.loc["world_size", ["a", "b"]]) == (4, 2)
    assert asked.loc["workload.exchange.kind", "b"] == "partial_local_shuffle"
    names = {"partial-0.3 streamlined @4": "partial-0.3 streamlined @2"}
    assert found.runs == names
    assert "compare samples/s, not the seconds of an epoch" in found.notes[0]
    rates = found.tables["rates"].set_index(["run", "epoch", "measure"])
    (run_,) = names
    assert tuple(rates.loc[(run_, 2, "samples"), ["a", "b"]]) == (160, 320)
    assert tuple(rates.loc[(run_, 2, "iterations"), ["a", "b"]]) == (160 / 4 / 10, 320 / 2 / 10)
    seconds = found.tables["seconds"].set_index(["run", "epoch", "label"])
    for letter, samples in (("a", 160), ("b", 320)):
        wanted = samples / seconds.loc[(run_, 2, "epoch"), letter]
        assert rates.loc[(run_, 2, "samples_per_s"), letter] == pytest.approx(wanted, rel=1e-12)
    assert main(["compare", folders["base"], other]) == 0
    text = capsys.readouterr().out
    assert "No inputs differ" not in text
    parts = ("Inputs that differ", "Rates:", "Seconds:", "fingerprint")
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert main(["compare", folders["base"], other, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["asked"][1] == {"run": "", "key": "world_size", "a": 4, "b": 2}
    assert said["runs"] == [{"a": run_, "b": names[run_]}]
    assert list(said)[-3:] == ["rates", "seconds", "versions"]


def test_what_cannot_be_matched_is_said_with_its_reason_and_differences(folders, tmp_path):
    other = saved(tmp_path / "other", workload__exchange="global_shuffle", world_size=2)
    found = compare(read_side(folders["base"]), read_side(other))
    assert found.runs == {}
    assert found.notes[0] == (
        "No run of A is like one of B, so no values are compared: they have no strategy in"
        " common (A: local_shuffle, partial_local_shuffle; B: global_shuffle)."
    )
    assert list(found.asked["key"]) == ["world_size", "workload.exchange.kind"]
    assert all(table.empty for table in found.tables.values())


def test_the_only_run_of_each_is_compared_whatever_differs(folders, tmp_path):
    other = saved(tmp_path / "other", workload__exchange="global_shuffle")
    found = compare(read_side(folders["local"]), read_side(other))
    assert found.runs == {"local @4": "global-pfs @4"}
    assert found.asked["key"].iloc[0] == "workload.exchange.kind"
    assert "workload.exchange.source" in set(found.asked["key"])  # a value, no source of a number
    assert len(found.tables["seconds"])


def test_of_a_strategy_the_runs_that_differ_least_are_matched():
    def run_(fraction: float, ranks: int) -> dict[str, Any]:
        kind = {"workload.exchange.kind": "partial_local_shuffle"}
        return {**kind, "workload.exchange.exchange_fraction": fraction, "world_size": ranks}

    a = {"a 0.1": run_(0.1, 64), "a 0.3": run_(0.3, 64)}
    b = {"b 0.3": run_(0.3, 2048), "b 0.1": run_(0.1, 2048), "b 0.5": run_(0.5, 2048)}
    assert match_runs(a, b) == {"a 0.1": "b 0.1", "a 0.3": "b 0.3"}


def test_sources_of_numbers_stand_last_and_decide_no_match():
    known = {"x.source.y": "a table of 2019", "cluster.z": 1}
    found = table_of_differing_requests(
        {"r": known}, {"r": {"x.source.y": "another", "cluster.z": 2}}, {"r": "r"}
    )
    assert list(found["key"]) == ["cluster.z", "x.source.y"]


def test_labels_of_sweeps_are_matched_by_strategy(tmp_path):
    exchange = {"workload__exchange": BOTH[1]}
    found = compare(*(swept(tmp_path / name, [int(name)], **exchange) for name in "24"))
    assert list(found.asked["key"]) == ["sweep.world_size"]
    (pair,) = [note for note in found.notes if note.startswith("Compared because")]
    assert "'partial-0.3 streamlined @2' with 'partial-0.3 streamlined @4'" in pair
    assert set(found.tables) == {"rates", "seconds"}


def test_differences_below_rounding_are_none(folders):
    """One part in 10^14 of an epoch, of its longest label, and waiting of 1e-14 s are rounding; one
    in 10^9 is not."""
    left = result_of_side(read_side(folders["base"])).compared()["seconds"]
    near = left * (1.0 + 1e-14)
    near.iloc[-1] += 1e-14
    notes: list[str] = []
    assert (_join_values("seconds", left, near, notes)["difference"] == 0.0).all()
    far = _join_values("seconds", left, left * (1.0 + 1e-9), notes)
    assert (far.loc[far["a"] > 0.1, "difference"] > 0).all()
    text = "\n".join(map(str, values("seconds", _join_values("seconds", left, near, notes))))
    assert "values are the same, but for rounding." in text


def test_the_epoch_that_leads_is_named_where_one_side_has_more(tmp_path):
    base = small(**{**SIZE, "workload__exchange": BOTH[1]})
    longer = base.with_values({"epochs": base.epochs + 1})
    text = str(compare(read_side(run(base)), read_side(run(longer))))
    assert f"Epoch {base.epochs} (the last that both have): the same" in text
    assert "Last epoch" not in text
    slower = longer.with_values({"workload.jitter.compute": 0.3})
    text = str(compare(read_side(run(base)), read_side(run(slower))))
    assert f"Epoch {base.epochs} (the last that both have) of partial-0.3 @4: A " in text
    assert "Last epoch: the same" in str(compare(*[read_side(run(base))] * 2))


def test_the_epoch_leads_and_no_schedule_that_all_share(tmp_path):
    """A wait that grows a million times is no headline: A waits for less than 0.1 % of an epoch."""
    base = small(**{**SIZE, "workload__exchange": BOTH[1]})
    sides = [read_side(run(base.with_values({"seed": seed}), seeds=2)) for seed in (0, 7)]
    text = str(compare(*sides))
    assert text.index("Last epoch of partial-0.3 @4: A ") < text.index("Inputs that differ")
    assert "streamlined" not in text
    a, b = re.findall(r"2 +epoch +([\d.]+) ± [\d.]+ +([\d.]+) ± [\d.]+ ", text)[0]
    assert f"A {a} s, B {b} s" in text

    index = pd.MultiIndex.from_product([["r"], [1], ["epoch", "wait"]], names=KEYS)
    left, right = (pd.DataFrame({"seconds": of}, index) for of in ([10.0, 1e-6], [10.1, 0.1]))
    table = _join_values("seconds", left, right, [])
    assert "the largest difference is +1.0 %, r, 1, epoch" in "".join(
        of for of in values("seconds", table) if isinstance(of, str)
    )
