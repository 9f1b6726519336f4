"""What `simshuffle study blame` prints, and what it refuses."""

import json
from pathlib import Path

import pandas as pd
import pytest

from simshuffle.cli import main

TRACE = Path(__file__).parents[1] / "data" / "blame" / "slow-rank.csv"


def refused(capsys, path):
    assert main(["study", "blame", str(path)]) == 2
    text = capsys.readouterr().err
    assert str(path) in text
    return text


def test_it_prints_at_most_a_screen_and_json(capsys):
    assert main(["study", "blame", str(TRACE)]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) < 40
    assert "if only rank 3 were not slow, 2.25 s less.\nRests on: 2 steps of 4 ranks" in text
    assert main(["study", "blame", str(TRACE), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["slow_down"] == pytest.approx(9.7 / 8.2)
    assert found["saved"][0]["saved_s"] == pytest.approx(2.25)
    assert main(["study", "blame", str(TRACE), "--to", "markdown"]) == 0
    assert "| 2.2500" in capsys.readouterr().out


def test_dates_are_no_seconds(capsys, tmp_path):
    path = tmp_path / "dates.parquet"
    table = pd.read_csv(TRACE)
    table.assign(start=pd.to_datetime(table.start, unit="s")).to_parquet(path)
    assert "row 1: start: must be a number of seconds" in refused(capsys, path)


def test_parquet_and_the_names_of_the_artifact_are_read(capsys, tmp_path):
    path = tmp_path / "trace.parquet"
    names = {"kind": "optype", "start": "start_ts"}
    pd.read_csv(TRACE).rename(columns=names).to_parquet(path)
    assert main(["study", "blame", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_s"] == pytest.approx(9.7)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table.drop(columns="duration"), "no duration"),
        (lambda table: table.head(0), "no rows"),
        (lambda table: table.assign(duration=-1.0), "row 1: duration: must not be negative"),
        (lambda table: table.assign(start="soon"), "row 1: start: must be a number of seconds"),
        (lambda table: table.assign(start=1.7e18), "row 1: start: must be a number of seconds"),
        (lambda table: table.assign(rank=0.5), "row 1: rank: must be a whole number"),
        (lambda table: table.assign(kind=None), "row 1: kind: must be the kind"),
        (lambda table: table[(table["rank"] != 3) | (table.step != 2)], "0 of rank 3 in step 2"),
        (lambda table: table.drop(index=0), "0 of rank 0 in step 1"),
        (lambda table: table[table["rank"] != 3], "all stages must have equally many ranks"),
        (lambda table: table.assign(rank=0), "must be in one stage"),
        (
            lambda table: table[table.kind != "forward-recv"],
            "forward-recv in the neighbouring stage",
        ),
        (lambda table: table[table.kind != "forward-compute"], "must have a forward-compute"),
    ],
)
def test_bad_tables_are_refused(capsys, tmp_path, change, words):
    path = tmp_path / "bad.csv"
    change(pd.read_csv(TRACE)).to_csv(path, index=False)
    assert words in refused(capsys, path)


@pytest.mark.parametrize("name", ["none.csv", "none.parquet"])
def test_what_is_no_table_is_refused(capsys, tmp_path, name):
    path = tmp_path / name
    assert "must be a table" in refused(capsys, path)
    path.write_bytes(b"\x00\xff\x00 no table")
    refused(capsys, path)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("nonsense", "Call it nonsense-compute if a rank does it alone, nonsense-all-reduce if"),
        ("cudaStreamSynchronize", "Leave cudaStreamSynchronize out"),
        ("nccl:send", "name the direction: forward-send"),
        ("forward-send-backward-recv", "Split forward-send-backward-recv"),
    ],
)
def test_kinds_that_do_not_say_who_waits_are_refused_beside_known_ones(
    capsys, tmp_path, kind, words
):
    path = tmp_path / "mixed.csv"
    table = pd.read_csv(TRACE)
    table.assign(kind=table.kind.replace("grads-reduce-scatter", kind)).to_csv(path, index=False)
    text = refused(capsys, path)
    assert f"got '{kind}'" in text
    assert words in text


def test_a_timer_that_holds_several_others_and_more_is_refused(capsys, tmp_path):
    path = tmp_path / "held.csv"
    rows = [
        (rank, 0, step, kind, 10 * step + start, length)
        for step in range(2)
        for rank in range(2)
        for kind, start, length in (("optimizer", 0, 5), ("copy", 1, 1), ("inner-step", 2, 1))
    ]
    names = ["rank", "stage", "step", "kind", "start", "duration"]
    pd.DataFrame(rows, columns=names).to_csv(path, index=False)
    assert "optimizer, 60% of it outside copy, inner-step" in refused(capsys, path)
