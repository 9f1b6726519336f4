"""The page of the papers' figures: what it names is shipped and can be simulated, what it shows is
there, and no scenario of the papers is missing."""

import re
from pathlib import Path

import pytest

from simshuffle.cli import main
from simshuffle.spec.library import shipped_names
from simshuffle.studies.presentation import storage

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "gallery.md").read_text()
LARGEST = 250_000
"""Bytes of a figure."""
PAPER = sorted(name for name in shipped_names("scenarios") if name.startswith("paper/"))


def test_every_scenario_of_the_papers_is_on_the_page_and_no_other():
    assert len(PAPER) > 10
    assert sorted({*re.findall(r"paper/[a-z0-9-]+", PAGE)}) == PAPER


@pytest.mark.parametrize("name", PAPER)
def test_a_scenario_of_the_papers_passes_check(name, capsys):
    assert main(["check", name, "-q"]) == 0
    assert "Traceback" not in capsys.readouterr().err
    assert re.match(r"# \S", (ROOT / "scenarios" / f"{name}.yaml").read_text())


def test_six_questions_have_a_figure_with_its_command_and_its_time():
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    drawn = [section for section in sections if "](figures/" in section]
    assert len(drawn) == 6
    for section in drawn:
        title = section.split("\n")[0]
        assert title.endswith("?"), title
        assert re.search(r"^(simshuffle|python) \S+ ?", section, re.MULTILINE), title
        assert re.search(r"^About [\d.]+ (s|min)", section, re.MULTILINE), title
        (name,) = re.findall(r"!\[[^\]]+\]\((figures/[^)]+\.png)\)", section)
        path = ROOT / "docs" / name
        assert path.read_bytes().startswith(b"\x89PNG"), name
        assert path.stat().st_size < LARGEST, name


def test_every_stored_figure_is_on_a_page():
    text = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    stored = [path.name for path in (ROOT / "docs" / "figures").glob("*.png")]
    assert [name for name in stored if f"](figures/{name})" not in text] == []


def test_what_the_page_says_of_local_storage_is_what_the_figure_shows():
    said = re.search(
        r"DeepCAM does on (\d+) of the (\d+) machines, CosmoFlow on (\d+), the subset"
        r" of ImageNet-21K on (\d+)",
        " ".join(PAGE.split()),
    )
    rows = storage.table(())
    whole = rows[rows["fits"] == "whole"].groupby("data_set").size()
    names = ("DeepCAM", "CosmoFlow", "ImageNet-21K subset")
    deepcam, machines, cosmoflow, imagenet = map(int, said.groups())
    assert [deepcam, cosmoflow, imagenet] == [whole[name] for name in names]
    assert rows["machine"].nunique() == machines
    assert set(rows[rows["data_set"].isin(names)]["fits"]) == {"whole", "(1+Q) shards"}
