"""docs/reference and the stub are what the code makes of them, and say it readably."""

import re
import sys
from pathlib import Path

import pytest

from simshuffle.study.registry import kinds_of, own_verbs, study_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
sys.path.append(str(ROOT / "docs"))

import make_reference  # noqa: E402
from make_reference import anchor, plain, table  # noqa: E402


@pytest.fixture(scope="module")
def made():
    return make_reference.pages()


def test_the_pages_are_what_the_code_says(made):
    others = {path.name for path in FOLDER.glob("validation*.md")}
    # by benchmarks; loaders, memory and resuming are held by tests
    others |= {"loaders.md", "memory.md", "scoreboard.md", "smpi.md", "speed.md", "windows.md"}
    others |= {"doctor.md", "resuming.md"}
    assert {path.name for path in FOLDER.iterdir()} - others == set(made)
    for name, text in made.items():
        there = (FOLDER / name).read_text()
        assert there == text, f"docs/reference/{name} is stale: make reference"


def test_make_reference_writes_them(made, tmp_path, monkeypatch):
    monkeypatch.setattr(make_reference, "pages", lambda: made)
    make_reference.main(tmp_path / "reference", tmp_path / "stub.pyi")
    assert {path.name: path.read_text() for path in (tmp_path / "reference").iterdir()} == made
    stub = (ROOT / "simshuffle" / "__init__.pyi").read_text()
    assert (tmp_path / "stub.pyi").read_text() == stub, "stale: make reference"


def test_links_within_a_page_lead_to_its_headings(made):
    for name, text in made.items():
        headings = [anchor(each) for each in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
        assert len(set(headings)) == len(headings), name
        assert set(re.findall(r"\]\(#([^)]*)\)", text)) <= set(headings), name


def test_every_column_of_every_table_is_there(made):
    page = made["tables.md"]
    for kind in kinds_of(own_verbs().values()):
        study = study_of(kind)
        derived = {name: each.schema for name, each in study.derived.items()}
        for name, schema in {**study.stored, **derived}.items():
            _, _, section = page.partition(f"### {kind}: {name}{schema.suffix}\n")
            shown = re.findall(r"^\| `(\w+)` \|", section.partition("\n#")[0], re.MULTILINE)
            assert shown == list(schema.columns), (kind, name)


def test_a_key_has_its_unit_default_range_and_line(made):
    page = made["scenario-keys.md"]
    for row in (
        "| `latency` | time | s | `85 us` |  | of one request. |",
        "| `read_bandwidth` | bandwidth | B/s | required | above 0 | of all servers together. |",
        "| `epochs` | whole number | `2` | from 1 | how many are simulated; the first is cold. |",
        "| `salt` | `per_switch`, `none` | `per_switch` |  | whether every switch hashes in",
    ):
        assert row in page, row


def test_every_verb_is_there_with_its_options(made):
    for row in ("## machine import\n", "simshuffle run SCENARIO... [OPTIONS]", "| `--out` |"):
        assert row in made["verbs.md"], row
    assert "--quiet" not in made["verbs.md"].partition("\n## run\n")[2]


def test_a_text_means_nothing_to_markdown():
    assert plain("a|b *c* <d> [e] 'f_g' authors' h") == (r"a\|b \*c\* \<d\> \[e\] `f_g` authors' h")
    assert table(("a", "b", "c"), [("1", "", "x"), ("2", "", "")]) == (
        "| a | c |\n| --- | --- |\n| 1 | x |\n| 2 |  |\n"
    )


def test_ranges_are_told_in_words():
    told = {
        "from 0 to 1": {"minimum": 0, "maximum": 1},
        "from 0, below 1": {"minimum": 0, "exclusiveMaximum": 1},
        "above 0": {"exclusiveMinimum": 0},
        "from 1": {"minimum": 1, "maximum": 2**53},
        "": {},
    }
    for words, schema in told.items():
        row = {"type": "object", "properties": {"a": {"type": "number", **schema}}, "required": []}
        page = make_reference.keys_page("T", "about", {"$defs": {}}, {"top": row})
        assert ("| `a` | number |" + (f" {words} |" if words else "")) in page


def test_an_option_without_default_has_none():
    page = make_reference.verbs_page(_command())
    assert "| `--out` | `FILE` |  | Where. |" in page
    assert "| `--count` | `N` | `3` | How many. |" in page


def _command():
    from typing import Annotated

    import typer

    app = typer.Typer(name="p")

    @app.command(name="a", help="Does a.")
    def a(
        out: Annotated[str | None, typer.Option(metavar="FILE", help="Where.")] = None,
        count: Annotated[int, typer.Option(metavar="N", help="How many.")] = 3,
    ):
        pass

    app.command(name="b", help="Does b.")(a)
    return typer.main.get_command(app)
