"""What every study keeps: what is stored is read back and drawn again without simulating; damage is
refused politely; every column is described; and a new study is one file."""

import json
import math
import shutil
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure
from rich.table import Table

from simshuffle.cli import main
from simshuffle.cli.common import show
from simshuffle.errors import InputError
from simshuffle.report import canvas
from simshuffle.report.console import export_parts
from simshuffle.report.excerpt import MAX_COLUMNS
from simshuffle.report.style import COLUMN_INCHES
from simshuffle.study import engine, executors, registry
from simshuffle.study.executors import ProcessExecutor, SerialExecutor
from simshuffle.study.registry import kinds, read_folder, study_of
from simshuffle.study.schema import Schema
from simshuffle.study.store import Disk
from simshuffle.study.study import Request, Result, Study, fingerprint
from tests.contents import contents as content
from tests.drawn import faults, laid_out
from tests.golden import make_verdicts
from tests.studies_tiny import TINY

NAMES = [*TINY]
MOST_LINES = 40
Made = tuple[Study[Any], Request[Any], Result, Path]


@pytest.fixture(scope="module", autouse=True)
def toy_is_registered() -> Iterator[None]:
    """The study of tests/toy.py: one file, and one line here as in a `verb.py`."""
    registry.kinds()["toy"] = "tests.toy"
    yield
    del registry.kinds()["toy"]


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A tiny study, done in this process, and its folder."""
    place = tmp_path_factory.mktemp(request.param)
    study, asked = TINY[request.param](place / "inputs")
    result = engine.run(study, asked, SerialExecutor(), Disk(place / "cells"))
    return study, asked, result, result.save(place / "out")


def test_every_kind_of_result_has_a_tiny_study():
    assert set(TINY) == set(kinds())


@pytest.mark.parametrize("made", NAMES, indirect=True)
def test_what_is_stored_is_read_back(made):
    study, asked, result, folder = made
    found = engine.find_complete_result(study, folder, fingerprint(study, asked))
    assert found is not None
    assert dict(found.meta) == json.loads(json.dumps(result.meta))
    assert found.documents == result.documents
    assert found.as_json() == result.as_json() or text(found) == text(result)
    for name in study.stored:
        pd.testing.assert_frame_equal(
            plain(found.tables[name]), plain(result.tables[name]), check_exact=True
        )


@pytest.mark.parametrize("made", NAMES, indirect=True)
def test_a_folder_of_an_earlier_version_is_read_and_printed(made, tmp_path):
    """Columns and tables that earlier versions lack are filled in."""
    study, _, result, folder = made
    old = copied(folder, tmp_path / "old")
    schemas = study.schemas(result.meta)
    lacking = {}
    for name in study.stored:
        later = [*schemas[name].newer, *schemas[name].absent]
        path = old / f"{name}{schemas[name].suffix}"
        if schemas[name].is_newer:
            path.unlink()
            described = json.loads((old / "columns.json").read_text())
            del described[path.name]
            (old / "columns.json").write_text(json.dumps(described))
        elif later and path.suffix == ".csv":
            pd.read_csv(path, dtype=str, keep_default_na=False).drop(columns=later).to_csv(
                path, index=False
            )
        lacking[name] = later
    found = read_folder(old)
    assert found.parts
    for name, later in lacking.items():
        if schemas[name].is_newer:
            assert len(found.tables[name]) == 0
        assert list(found.tables[name].columns) == list(result.tables[name].columns)
        for column in set(later) & schemas[name].absent.keys():
            value = schemas[name].absent[column]
            assert all(each == value or is_nan(each) for each in found.tables[name][column])
    assert str(found)


def copied(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to))


def text(result: Result) -> str:
    return json.dumps(result.as_json(), default=lambda value: value.item())


def plain(table: pd.DataFrame) -> pd.DataFrame:
    """The table as values: a text may be stored as a category, and what is missing in many ways."""
    return pd.DataFrame(
        {
            name: [
                None if value is None or value is pd.NA or value == "" or is_nan(value) else value
                for value in table[name].astype(object)
            ]
            for name in table
        }
    )


def is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def undrawn(folder: Path) -> dict[str, bytes]:
    """All that a result folder holds but its figures."""
    drawn = {".png", ".pdf"}
    return {name: of for name, of in content(folder).items() if Path(name).suffix not in drawn}


@pytest.mark.parametrize("made", NAMES, indirect=True)
def test_a_result_is_saved_and_drawn_again_without_simulating(made, tmp_path, monkeypatch):
    study, _, _, folder = made
    monkeypatch.setattr(engine, "run", lambda *_, **__: pytest.fail("it was simulated"))
    again = read_folder(folder).save(tmp_path / "again", draw=False)
    assert content(again) == undrawn(folder)
    assert main(["results", "plot", str(folder), "--out", str(tmp_path / "drawn" / "it")]) == 0
    drawn = sorted(path.read_bytes() for path in (tmp_path / "drawn").rglob("*.p*"))
    assert drawn == sorted(path.read_bytes() for path in folder.glob("*.p??"))
    assert len(drawn) == 2 * len(study.figures(read_folder(folder)))


@pytest.mark.parametrize("made", [name for name in NAMES if name != "toy"], indirect=True)
def test_figures_fit_a_column_and_their_words_can_be_read(made):
    for name, figure in made[0].figures(made[2]).items():
        drawn = laid_out(figure)
        assert drawn.get_figwidth() == COLUMN_INCHES
        assert [f"{name}: {fault}" for fault in faults(drawn)] == []


@pytest.mark.parametrize("made", NAMES, indirect=True)
def test_a_result_is_printed_again_as_the_verb_printed_it(made, monkeypatch, capsys):
    study, _, result, folder = made
    monkeypatch.setattr(engine, "run", lambda *_, **__: pytest.fail("it was simulated"))
    show(result, folder, json=False)
    wanted = capsys.readouterr().out
    assert len(wanted.splitlines()) <= MOST_LINES
    assert main(["results", "show", str(folder)]) == 0
    assert capsys.readouterr().out == wanted
    assert main(["results", "show", str(folder), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert shown.keys() == result.as_json().keys()
    for to, begin in (("latex", r"  \begin{tabular}"), ("markdown", "| ---")):
        assert main(["results", "show", str(folder), "--to", to]) == 0
        out = capsys.readouterr().out
        tables = [part for part in result.exported() if isinstance(part, Table)]
        assert sum(line.startswith(begin) for line in out.splitlines()) == len(tables)
        assert tables or study.kind == "toy"
        assert out == export_parts(result.exported(), to)
        rows = [line for line in out.splitlines() if to == "latex" and line.endswith(r" \\")]
        assert [row for row in rows if row.count(" & ") >= MAX_COLUMNS] == []


@pytest.mark.parametrize("made", NAMES, indirect=True)
def test_a_verdict_is_that_of_the_golden_file_and_stands_last(made):
    study, _, result, _ = made
    said = result.verdict()
    if study.verdict is None:
        assert said == []
        return
    assert said == make_verdicts.read_sections()[make_verdicts.title_of(study, study.kind)], (
        make_verdicts.RENEW
    )
    assert " ".join(str(result).split()).endswith(" ".join(said))
    first, second, *_ = result.as_json().items()
    assert first == ("verdict", said)
    assert second == ("verdict_parts", asdict(result.structured_verdict()))


@pytest.mark.parametrize("made", NAMES, indirect=True)
def test_every_column_is_described_with_a_sentence(made):
    study, _, result, folder = made
    described = json.loads((folder / "columns.json").read_text())
    for name, schema in study.schemas(result.meta).items():
        about = described[f"{name}{schema.suffix}"]
        assert list(about) == list(schema.columns)
        assert all(sentence.strip() for sentence in about.values())
    assert {f"{name}" for name in study.files} <= {path.name for path in folder.iterdir()}


class _Stopping(ProcessExecutor):
    """Is interrupted after the first cell."""

    def do(self, cells: Any, store: Any, watch: Any) -> Iterator[str]:
        yield from super().do(dict([next(iter(cells.items()))]), store, watch)
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def workers() -> Iterator[executors.Workers]:
    """What processes are forked from, which takes a second to import what they need."""
    with executors.Workers() as begun:
        yield begun


@pytest.mark.parametrize("made", NAMES, indirect=True)
def test_a_study_that_was_stopped_goes_on_in_several_processes_to_the_same_bytes(
    made, tmp_path, workers, monkeypatch
):
    monkeypatch.setattr(executors, "Workers", lambda: nullcontext(workers))
    study, asked, _, folder = made
    store, executor = Disk(tmp_path / "cells"), ProcessExecutor(3)
    if not study.stages:
        result = engine.run(study, asked, executor, store)
        assert content(result.save(tmp_path / "out")) == content(folder)
        assert not set(store.digests())
        pytest.skip("nothing is computed that could be stopped: it was measured before")
    with pytest.raises(KeyboardInterrupt):
        engine.run(study, asked, _Stopping(3), store)
    kept = set(store.digests())
    result = engine.run(study, asked, executor, store)
    assert kept <= set(store.digests())
    assert content(result.save(tmp_path / "out", draw=False)) == undrawn(folder)


@pytest.mark.parametrize("made", NAMES, indirect=True)
@pytest.mark.parametrize("damage", ["without a column", "other type", "infinite", "cut", "gone"])
def test_a_damaged_table_is_refused_politely(damage, made, tmp_path):
    study, asked, result, folder = made
    for name, schema in study.schemas(result.meta).items():
        if name not in study.stored:
            continue
        other = copied(folder, tmp_path / name)
        path = other / f"{name}{schema.suffix}"
        if not spoil(path, damage, schema):
            continue
        with pytest.raises(InputError) as caught:
            engine.read(study, other)
        assert path.name in str(caught.value)
        assert all(problem.remedy for problem in caught.value.problems)
        assert engine.find_complete_result(study, other, fingerprint(study, asked)) is None
        assert main(["results", "plot", str(other)]) == 2


def spoil(path: Path, damage: str, schema: Schema) -> bool:
    """Damage a table; False where it has nothing that could be damaged so."""
    if damage == "gone":
        path.unlink()
        return True
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-10])
        return True
    table = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    # a column of texts that are all empty looks like one of numbers
    numbers = [n for n in table.select_dtypes("number") if schema.columns[n].kind != "text"]
    if damage == "without a column":
        table = table.iloc[:, 1:]
    elif table.empty or not numbers:
        return False
    elif damage == "other type":
        table[numbers[-1]] = "much"
    else:
        table[numbers[-1]] = table[numbers[-1]].astype(float)
        table.loc[0, numbers[-1]] = math.inf
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    else:
        table.to_parquet(path, index=False)
    return True


@pytest.mark.parametrize("made", NAMES, indirect=True)
@pytest.mark.parametrize("value", [None, 3, "text", [], {"a": 1}], ids=repr)
def test_a_meta_file_with_other_values_is_refused_or_does_without(
    value, made, tmp_path, monkeypatch, capsys
):
    """Figures are made, and what a file would say of itself is a text; none is written. Those of a
    number, or none, are laid out too: it may be a limit of an axis."""
    number = not isinstance(value, str | list | dict)
    monkeypatch.setattr(canvas, "save", partial(not_written, number))
    other = copied(made[3], tmp_path / "other")
    meta = json.loads((other / "meta.json").read_text())
    for key in made[2].meta:
        (other / "meta.json").write_text(json.dumps({**meta, key: value}))
        status = main(["results", "plot", str(other)])
        assert status in {0, 2}
        assert status == 0 or capsys.readouterr().err


def not_written(number: bool, figure: Figure, stem: Path, about: str) -> list[Path]:
    assert isinstance(about, str)
    if number:
        figure.draw_without_rendering()
    return [stem]


@pytest.mark.parametrize("made", ["congestion"], indirect=True)
def test_a_number_that_no_measurement_has_is_refused(made, tmp_path):
    """Times of 2^63 s overflow where they are added up; they are refused where they are read."""
    folder = copied(made[3], tmp_path / "other")
    meta = json.loads((folder / "meta.json").read_text())
    meta["message_latency_s"] = 2**63
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(InputError, match="message_latency_s"):
        read_folder(folder)


@pytest.mark.parametrize("made", ["time_to_accuracy"], indirect=True)
@pytest.mark.parametrize(("column", "value"), [("low", 1e30), ("high", -1.0), ("total_s", None)])
def test_settings_whose_accuracy_is_outside_its_interval_or_without_a_time_are_refused(
    column, value, made, tmp_path
):
    folder = copied(made[3], tmp_path / "other")
    settings = pd.read_csv(folder / "settings.csv")
    settings.assign(**{column: value}).to_csv(folder / "settings.csv", index=False)
    with pytest.raises(InputError, match=r"settings\.csv"):
        read_folder(folder)


def test_a_folder_of_an_unknown_kind_is_refused(tmp_path):
    (tmp_path / "meta.json").write_text('{"kind": "neverheard"}')
    with pytest.raises(InputError, match="result folder"):
        read_folder(tmp_path)


def test_a_study_is_found_by_its_kind():
    for kind in kinds():
        assert study_of(kind).kind == kind
    assert "tests.toy" in sys.modules
