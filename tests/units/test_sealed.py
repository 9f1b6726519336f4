"""Predictions that are sealed before anybody measures, what is compared later, and what others
enter beside them."""

import csv
import json

import pytest

import simshuffle
from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.extensions.calibration.validation import sealed
from simshuffle.extensions.calibration.validation.entries import compare_entries, read_entries
from simshuffle.extensions.calibration.validation.table import COLUMNS, read_rows
from simshuffle.extensions.calibration.validation.text import entry_cells
from simshuffle.study.registry import read_folder

SMALL = "world_size=2;epochs=2;workload.dataset.num_samples=2000;workload.local_batch_size=32"
ROW = dict.fromkeys(COLUMNS, "") | {
    "set": "mine",
    "case": "2 ranks",
    "quantity": "steady epoch",
    "unit": "s",
    "use": "predict",
    "kind": "run",
    "scenario": "quickstart",
    "values": SMALL,
    "source": "a page",
}
FIRST = ROW | {"quantity": "first epoch"}
OTHER = ROW | {"set": "other", "measured": "0.02"}
FITTED = OTHER | {"case": "fitted", "use": "fit", "reason": "the rate"}


def write(folder, *records):
    folder.mkdir(exist_ok=True)
    with (folder / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(COLUMNS))
        writer.writeheader()
        writer.writerows(records)
    return folder


def validate(*words, out=None):
    return main(["study", "validate", "--processes", "1", *map(str, words)])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two rows of a set that is not measured yet, sealed, and one of a set that is."""
    place = tmp_path_factory.mktemp("sealed")
    rows = write(place / "rows", ROW, FIRST, OTHER, FITTED)
    assert validate("--from", rows, "--seal", place / "sealed.json") == 0
    return place


@pytest.fixture
def file(made, tmp_path):
    """A copy of the sealed file."""
    path = tmp_path / "sealed.json"
    path.write_bytes((made / "sealed.json").read_bytes())
    return path


def test_what_is_sealed_names_versions_and_has_nothing_that_was_measured(made):
    found = json.loads((made / "sealed.json").read_text())
    content = found["content"]
    assert {*content["versions"]} == {"simshuffle", "python", "numpy", "scipy", "numba"}
    assert content["date"].startswith("20") and content["format"] == sealed.FORMAT
    assert [row["set"] for row in content["predictions"]] == ["mine", "mine", "other"]
    for row in content["predictions"]:
        assert row["predicted"] > 0
        assert not {"measured", "low", "high", "error", "reason"} & {*row}
        assert 0 < row["interval_low"] < row["predicted"] < row["interval_high"]


def test_the_digest_is_that_of_canonical_json(made):
    # SHA-256 of {"a":1,"b":["é",null]}, by another program: sha256sum
    known = "13d9a822ad32e5e212330efcac0a1d999dfc0508cee708a8a0cdbe2802a26cf1"
    assert sealed.compute_digest({"b": ["é", None], "a": 1}) == known


def test_what_was_sealed_is_compared_with_what_was_measured_since(file, tmp_path, capsys):
    predicted = sealed.read_seal_file(file).predictions["predicted"]
    value = predicted[0] * 1.25
    rows = write(tmp_path / "rows", ROW | {"measured": str(value)}, FIRST, OTHER)
    assert validate("--from", rows, "--open", file, "--only", "mine") == 0
    printed = capsys.readouterr().out
    assert sealed.read_seal_file(file).origin["sha256"] in " ".join(printed.split())
    assert "mine (sealed)" in printed and "-20.0 %" in printed
    assert "mine (not measured yet)" in printed and "first epoch" in printed
    assert validate("--from", rows, "--open", file, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["error"] for row in found["rows"]][:2] == [pytest.approx(-0.2), None]
    assert found["rows"][0]["predicted"] == predicted[0]
    assert found["summary"][0]["rows"] == 2
    first = found["rows"][0]
    inside = first["interval_low"] <= value <= first["interval_high"]
    assert found["summary"][0]["coverage"] == float(inside)
    assert found["coverage"]["rows"] == 2 and found["coverage"]["scored"] == 2
    assert found["sealed"]["sha256"] == sealed.read_seal_file(file).origin["sha256"]


def test_rows_that_nobody_measured_are_listed(file, tmp_path, capsys):
    rows = write(tmp_path / "rows", OTHER)
    assert validate("--from", rows, "--open", file, "--only", "mine") == 0
    printed = capsys.readouterr().out
    assert "mine (not measured yet)" in printed and "steady epoch" in printed
    assert "mine (sealed)" not in printed


def test_a_result_of_what_was_sealed_is_verified_from_its_folder(file, tmp_path, capsys):
    rows = write(tmp_path / "rows", ROW | {"measured": "1"}, FIRST, OTHER)
    assert validate("--from", rows, "--open", file, "--out", tmp_path / "out") == 0
    assert (tmp_path / "out" / "sealed.json").read_bytes() == file.read_bytes()
    assert read_folder(tmp_path / "out").meta["sealed"]["code"]
    assert main(["results", "verify", str(tmp_path / "out")]) == 0


# -------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda text: text.replace('"unit": "s"', '"unit": "B"', 1), "the file was changed"),
        (lambda text: text.replace('"sha256": "', '"sha256": "0', 1), "the file was changed"),
        (lambda text: text[:-9], "must be JSON in UTF-8"),
        (lambda text: "[" * 100_000, "must be JSON in UTF-8"),
        (lambda text: "[]", "content.format: must be"),
        (lambda text: '{"content": {"format": "x"}}', "content.format: must be"),
    ],
)
def test_a_changed_file_is_refused(file, made, capsys, change, text):
    file.write_text(change(file.read_text()), encoding="utf-8")
    assert validate("--from", made / "rows", "--open", file) == 2
    error = capsys.readouterr().err
    assert text in error and "Give a file that --seal wrote and nobody changed." in error


@pytest.mark.parametrize(
    "change",
    [
        {"predictions": 3},
        {"predictions": [{"set": "x"}]},
        {"predictions": None},
        {"date": 1},
        {"versions": "1.0"},
    ],
)
def test_a_file_with_its_digest_that_holds_no_predictions_is_refused(file, made, capsys, change):
    content = json.loads(file.read_text())["content"] | change
    whole = {"sha256": sealed.compute_digest(content), "content": content}
    file.write_text(json.dumps(whole))
    assert validate("--from", made / "rows", "--open", file) == 2
    assert "content" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["many", 10**400, 1e200, None])
def test_a_number_that_is_none_is_refused(file, made, capsys, number):
    content = json.loads(file.read_text())["content"]
    content["predictions"][0]["traffic"] = number
    whole = {"sha256": sealed.compute_digest(content), "content": content}
    file.write_text(json.dumps(whole))
    assert validate("--from", made / "rows", "--open", file) == 2
    assert "sealed.json" in capsys.readouterr().err


def test_a_sealed_file_is_not_replaced(file, made, capsys):
    before = file.read_bytes()
    assert validate("--from", made / "rows", "--seal", file) == 2
    assert "--force replaces them" in capsys.readouterr().err
    with pytest.raises(InputError, match="holds sealed predictions"):
        simshuffle.validate(folder=made / "rows", seal=file, progress=False)
    assert file.read_bytes() == before


def test_it_is_replaced_if_that_is_asked(file, made, capsys):
    assert validate("--from", made / "rows", "--seal", file, "--force", "--only", "other") == 0
    digest = sealed.read_seal_file(file).origin["sha256"]
    said = capsys.readouterr().err
    assert f"sha-256 {digest}" in said
    assert "Without a 90 % interval" not in said
    assert len(sealed.read_seal_file(file).predictions) == 1


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_another_file_is_never_replaced(made, tmp_path, capsys, force):
    path = tmp_path / "notes.json"
    path.write_text("mine")
    for place in (path, tmp_path, tmp_path / "no" / "folder.json"):
        assert validate("--from", made / "rows", "--seal", place, *force) == 2
        assert "--seal: cannot be written" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert [of.name for of in tmp_path.iterdir()] == ["notes.json"]


def test_a_file_that_appears_meanwhile_is_not_replaced(made, tmp_path, monkeypatch):
    path = tmp_path / "sealed.json"
    results = simshuffle.validate(folder=made / "rows", seal=path, progress=False)
    before = path.read_bytes()
    monkeypatch.setattr(sealed, "check_path", lambda path, replace: None)
    with pytest.raises(InputError, match="cannot be written"):
        sealed.seal_predictions(path, results.tables["validation"], "", replace=False)
    assert path.read_bytes() == before
    assert [of.name for of in tmp_path.iterdir()] == ["sealed.json"]


@pytest.mark.parametrize(
    ("row", "words", "text"),
    [
        (ROW | {"unit": "ms"}, [], "must have the unit 's'; got 'ms'"),
        (ROW, ["--only", "nine"], "Did you mean 'mine'?"),
    ],
)
def test_rows_that_were_not_sealed_are_refused(file, tmp_path, capsys, row, words, text):
    folder = write(tmp_path / "rows", row)
    assert validate("--from", folder, "--open", file, *words) == 2
    assert text in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- entries

HEAD = "set,case,quantity,predicted,interval_low,interval_high,by"


def entry(place, *lines, name="entry.csv", head=HEAD):
    (place / name).write_text("\n".join([head, *lines, ""]))
    return place / name


def test_entries_are_scored_beside_simshuffle_on_the_same_rows(made, tmp_path, capsys):
    rows = write(tmp_path / "rows", OTHER, OTHER | {"case": "again"}, ROW | {"measured": "0.04"})
    # of 0.02 s measured: 0.03 is 50 % off, and 0.01 to 0.04 has it; ln 4 = 1.39
    first = entry(tmp_path, "other,2 ranks,steady epoch,0.03,0.01,0.04,a sheet")
    second = entry(tmp_path, "mine,2 ranks,steady epoch,0.03,,,other", name="two.csv")
    words = ["--from", rows, "--entry", first, "--entry", second]
    assert validate(*words) == 0
    assert "Entries, and simshuffle on the same rows" in capsys.readouterr().out
    assert validate(*words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    sheet, other = found["entries"]
    assert (sheet["by"], sheet["set"], sheet["rows"]) == ("a sheet", "other", 1)
    assert sheet["median_error"] == pytest.approx(0.5)
    assert (sheet["coverage"], sheet["interval_score"]) == (1.0, pytest.approx(1.38629436))
    ours = next(row for row in found["rows"] if row["set"] == "other")
    assert sheet["our_median_error"] == pytest.approx(abs(ours["error"]))
    assert sheet["our_interval_score"] is not None
    assert other["median_error"] == pytest.approx(0.25) and other["coverage"] is None


def test_an_entry_of_another_set_than_is_asked_for_does_not_count(tmp_path, capsys):
    rows = write(tmp_path / "rows", OTHER, ROW | {"measured": "0.04"})
    of = entry(tmp_path, "mine,2 ranks,steady epoch,0.03,,,x")
    assert validate("--from", rows, "--only", "other", "--entry", of, "--json") == 0
    assert json.loads(capsys.readouterr().out)["entries"] == []


def test_an_entry_counts_where_something_was_measured_since(file, tmp_path, capsys):
    rows = write(tmp_path / "rows", ROW | {"measured": "0.04"}, FIRST)
    of = entry(
        tmp_path,
        "mine,2 ranks,steady epoch,0.03,0.02,0.05,x",
        "mine,2 ranks,first epoch,0.03,0.02,0.05,x",
    )
    assert validate("--from", rows, "--open", file, "--entry", of, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["entries"]
    assert (found["rows"], found["coverage"]) == (1, 1.0)


def test_an_entry_that_is_no_text_is_refused(tmp_path):
    rows = read_rows(write(tmp_path / "rows", OTHER))
    (tmp_path / "bad.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"bad\.csv"):
        read_entries([tmp_path / "bad.csv"], rows)


def test_no_entry_is_no_table(tmp_path):
    rows = write(tmp_path / "rows", OTHER)
    results = simshuffle.validate(folder=rows, progress=False).tables
    assert entry_cells(compare_entries(results["validation"], results["entries"])) == []
