"""A result folder is done again from what it holds: the same for every kind that holds enough, and
what differs by file, column and row where somebody changed it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from simshuffle.cli import main
from simshuffle.report.table_io import read_csv
from simshuffle.studies.verify import TOLERANCE, verify
from simshuffle.study import engine
from simshuffle.study.registry import kinds, study_of
from simshuffle.study.study import Request, Study
from tests.contents import contents
from tests.units.test_data_optimised import RAW

SHUFFLING = {
    "name": "few",
    "data": {"kind": "digits", "test_share": 0.9},
    "model": {"kind": "mlp", "width": 8, "layers": 1},
    "training": {"epochs": 1, "local_batch_size": 4, "drop_last": True},
    "runs": [{"exchange": ["partial_local_shuffle:exchange_fraction=0.3"], "world_size": 4}],
}
ALTERED = {
    "simulation": ("epochs.csv", "epoch_s"),
    "simulation_over_seeds": ("summary.csv", "mean"),
    "simulation_of_jobs": ("jobs.csv", "slowdown"),
    "sweep": ("summary.csv", "high"),
    "ablation": ("ends.csv", "exchange_fraction"),
    "hiding": ("points.csv", "epoch_s"),
    "accuracy": ("remedies.csv", "high_points"),
    "oracle": ("points.csv", "samples_per_s"),
    "congestion": ("times.csv", "time_s"),
    "loader": ("loaders.csv", "shards"),
    "tuning": ("settings.csv", "samples_per_s"),
    "resume": ("resumes.csv", "first_batch_s"),
    "sizes": ("quantiles.csv", "median"),
    "month": ("periods.csv", "goodput"),
    "planning": ("strategies.csv", "epoch_s"),
    "validation": ("validation.csv", "predicted"),
    "validation_opened": ("validation.csv", "predicted"),
    "training": ("runs.csv", "train_loss"),
    "data_optimised": ("filters.csv", "kl_divergence"),
}
"""A number that somebody changes: stored tables, and tables that follow from those."""
REFUSED = {
    "testbed": ("never the same twice", "Measure again"),
    "calibration": ("only their digests", "Calibrate ior-4-hosts.txt, log.csv again"),
    "time_to_accuracy": ("also hold the training 'made'", "join it again"),
}


def trained(raw: dict[str, Any], place: Path) -> tuple[Study[Any], Request[Any]]:
    from simshuffle.extensions.learning.filtering.request import request_by_kind

    place.mkdir(parents=True)
    (place / "study.yaml").write_text(json.dumps(raw))
    kind, request = request_by_kind(place / "study.yaml", {}, "cpu")
    return study_of(kind), request


REAL: dict[str, Callable[[Path], tuple[Study[Any], Request[Any]]]] = {
    "training": lambda place: trained(SHUFFLING, place),
    "data_optimised": lambda place: trained({**RAW, "seeds": 1}, place),
}
"""What tests elsewhere make up, and what has to be trained here."""


@pytest.fixture(scope="module")
def folder_of(
    results_made: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """The folder of a tiny result of a kind; what has to be trained is when it is first wanted."""
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in REAL:
            return results_made(kind)
        if kind not in made:
            place = tmp_path_factory.mktemp(kind)
            study, asked = REAL[kind](place / "inputs")
            made[kind] = engine.run(study, asked).save(place / "out", draw=False)
        return made[kind]

    return folder


def copied(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to))


def altered(path: Path, column: str, by: float) -> str:
    """Change the largest number of a column; returns how its row is called."""
    table = read_csv(path)
    row = int(table[column].abs().argmax())
    table.loc[row, column] *= 1 + by
    table.to_csv(path, index=False)
    return f"in 1 of {len(table)} rows"


def with_meta(folder: Path, **values: Any) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, **values}))


def test_every_kind_is_done_again_or_says_why_not():
    assert {*ALTERED, *REFUSED} == {*kinds()}
    assert all(study_of(kind).again for kind in kinds())


@pytest.mark.parametrize("kind", ALTERED)
def test_all_is_the_same_but_a_number_that_somebody_changed(kind, folder_of, tmp_path):
    folder = copied(folder_of(kind), tmp_path / "elsewhere")
    file, column = ALTERED[kind]
    rows = altered(folder / file, column, 1e-6)
    before = contents(folder)
    found = verify(folder)
    told = [str(each) for each in found.differences]
    assert told[0].startswith(f"{file}: {column} {rows}, largest difference"), told
    assert len(told) == 1, told
    assert {f"{name}{of.suffix}" for name, of in study_of(kind).stored.items()} <= {*found.compared}
    assert found.rule.tolerance == 0
    assert contents(folder) == before


@pytest.mark.parametrize("kind", REFUSED)
def test_a_folder_that_holds_too_little_says_what_to_do(kind, folder_of, capsys):
    assert main(["results", "verify", str(folder_of(kind)), "-q"]) == 2
    said = capsys.readouterr().err
    assert all(words in said for words in REFUSED[kind])


# -------------------------------------------------------------------------------------- the rule


@pytest.fixture
def folder(folder_of: Callable[[str], Path], tmp_path: Path) -> Path:
    return copied(folder_of("simulation"), tmp_path / "out")


def told(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    capsys.readouterr()
    status = main(["results", "verify", str(folder), "--processes", "1", "-q", *options])
    out = capsys.readouterr()
    return status, out.out + out.err


def test_what_differs_is_said_with_its_row_and_size(folder, capsys):
    table = read_csv(folder / "epochs.csv")
    was = float(table.loc[1, "epoch_s"])
    table.loc[1, "epoch_s"] = was * 1.25
    table.to_csv(folder / "epochs.csv", index=False)
    status, said = told(folder, capsys)
    assert status == 1
    assert said.splitlines()[-1] == (
        f"NOT the same: epochs.csv: epoch_s in 1 of 2 rows, largest difference {was / 4:.3g}"
        f" (relative 0.2) at run=local @4, epoch=2: {was * 1.25} stored, {was} recomputed."
    )
    status, said = told(folder, capsys, "--json")
    found = json.loads(said)
    assert (status, found["same"], len(found["differences"])) == (1, False, 1)
    assert found["differences"][0]["relative"] == pytest.approx(0.2)


def test_the_same_version_means_to_the_last_bit(folder, tmp_path, monkeypatch):
    """And nothing is left in the folder for temporary files."""
    room = tmp_path / "room"
    room.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(room))
    altered(folder / "epochs.csv", "epoch_s", 1e-15)
    assert [each.what for each in verify(folder).differences] == ["epoch_s"]
    asked = verify(folder, tolerance=1e-12)
    assert asked.is_identical
    assert "as --tolerance says" in str(asked.rule)
    assert not any(room.iterdir())


OTHERS: list[dict[str, Any]] = [
    {"versions": {"simshuffle": "0.0.1", "python": "3.9.0"}},
    {"code": "0" * 12, "fingerprint": "0" * 12},
]


@pytest.mark.parametrize("meta", OTHERS, ids=["versions", "code"])
def test_another_version_may_differ_by_the_tolerance(folder, meta):
    with_meta(folder, **meta)
    altered(folder / "epochs.csv", "epoch_s", TOLERANCE / 2)
    found = verify(folder)
    assert found.is_identical, [str(each) for each in found.differences]
    assert found.rule.tolerance == TOLERANCE
    assert ("0.0.1 (here " if "versions" in meta else "code 000000000000 (here ") in str(found.rule)
    assert any("fingerprint" in note for note in found.notes) == ("fingerprint" in meta)
    altered(folder / "epochs.csv", "epoch_s", 3 * TOLERANCE)
    assert [each.what for each in verify(folder).differences] == ["epoch_s"]
    assert verify(folder, tolerance=1e-6).is_identical


def test_a_fingerprint_alone_a_document_and_meta_are_compared(folder):
    with_meta(folder, fingerprint="0" * 12)
    (found,) = verify(folder).differences
    assert (found.what, found.stored) == ("fingerprint", "0" * 12)
    meta = json.loads((folder / "meta.json").read_text())
    run = next(iter(meta["runs"]))
    meta["runs"][run]["staging_s"] += 1.0
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "scenario.yaml").write_text(f"# mine\n{(folder / 'scenario.yaml').read_text()}")
    told_of = {(each.file, each.what) for each in verify(folder).differences}
    assert ("scenario.yaml", "") in told_of
    assert ("meta.json", f"runs.{run}.staging_s") in told_of


def test_rows_that_are_gone_and_texts_that_differ(folder):
    table = read_csv(folder / "sources.csv")
    table.loc[1, "strategy"] = "another"
    table.iloc[[1, 0]].to_csv(folder / "sources.csv", index=False)
    found = [str(each) for each in verify(folder).differences]
    assert any("rows in one order stored, in another" in of for of in found)
    assert any("strategy in 1 of 2 rows, the first one at run=" in each for each in found)
    long = pd.read_parquet(folder / "timeline.parquet")
    long.iloc[:-1].to_parquet(folder / "timeline.parquet", index=False)
    found = [str(each) for each in verify(folder).differences]
    counts = f"{len(long) - 1} rows stored, {len(long)} rows recomputed"
    assert any(counts in each for each in found)


def test_a_row_of_another_key_is_named(folder_of, tmp_path):
    folder = copied(folder_of("loader"), tmp_path / "out")
    table = read_csv(folder / "epochs.csv")
    last = {name: table.loc[len(table) - 1, name] for name in ("loader", "epoch")}
    table.loc[len(table) - 1, "epoch"] = 99
    table.to_csv(folder / "epochs.csv", index=False)
    (found,) = verify(folder).differences
    key = f"loader={last['loader']}, epoch="
    assert str(found) == (
        f"epochs.csv: 1 row that the other lacks ({key}99) stored,"
        f" 1 row that the other lacks ({key}{last['epoch']}) recomputed"
    )


def test_a_training_of_other_code_has_other_names_of_runs(folder_of, tmp_path):
    folder = copied(folder_of("training"), tmp_path / "out")
    with_meta(folder, code="0" * 12)
    for path in (*folder.glob("*.csv"), *folder.glob("*.parquet")):
        table = read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
        if "run" not in table:
            continue
        table["run"] = table["run"].astype(str).str[:-12] + "0" * 12
        (table.to_csv if path.suffix == ".csv" else table.to_parquet)(path, index=False)
    found = verify(folder)
    assert [str(each) for each in found.differences] == []
    assert any(each.startswith("seconds of runs.csv") for each in found.left_out)


# ------------------------------------------------------------------------------- what is refused


def test_what_is_no_whole_result_is_refused_in_one_message(folder, tmp_path, capsys):
    def refused(place: Path, words: str, *options: str) -> None:
        status, said = told(place, capsys, *options)
        assert status == 2, said
        assert words in said
        assert "Traceback" not in said

    refused(tmp_path / "none", "must be a result folder")
    refused(folder, "must be from 0 to below 1", "--tolerance", "nan")
    refused(folder, "must be from 0 to below 1", "--tolerance", "-1")
    damaged = copied(folder, tmp_path / "damaged")
    (damaged / "links.parquet").write_bytes(b"PAR1")
    refused(damaged, "links.parquet")
    older = copied(folder, tmp_path / "older")
    (older / "scenario.yaml").write_text("name: it\nkey_of_another_version: 1\n")
    refused(older, "key_of_another_version")


def test_a_result_that_was_stopped_is_refused(folder_of, tmp_path, capsys):
    folder = copied(folder_of("sweep"), tmp_path / "out")
    with_meta(folder, state="unfinished")
    status, said = told(folder, capsys)
    assert status == 2
    assert "must be finished" in said
    with_meta(folder, state="finished")
    (folder / "summary.csv").write_text("label\n")
    status, said = told(folder, capsys)
    assert status == 2
    assert "summary.csv" in said


def test_what_asked_for_a_result_is_missing_in_its_meta(folder_of, tmp_path, capsys):
    folder = copied(folder_of("hiding"), tmp_path / "out")
    meta = json.loads((folder / "meta.json").read_text())
    del meta["asked"]
    (folder / "meta.json").write_text(json.dumps(meta))
    status, said = told(folder, capsys)
    assert status == 2
    assert "meta.json: asked: Field required" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_leaves_nothing(folder, tmp_path, number):
    room = tmp_path / "room"
    room.mkdir()
    before = contents(folder)
    code = (
        "import sys, time; from simshuffle.study import engine; from simshuffle.cli import main\n"
        "engine.run = lambda *of, **more: (print('begun', flush=True), time.sleep(60))\n"
        f"sys.exit(main(['results', 'verify', {str(folder)!r}]))"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(room)}, **pipes)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    assert any(room.iterdir())
    time.sleep(0.2)
    process.send_signal(number)
    _, said = process.communicate(timeout=900)
    assert process.returncode == 130, said
    assert b"Traceback" not in said
    assert not any(room.iterdir())
    assert contents(folder) == before
