"""Every command and every piece of Python in README.md and docs/ is executed; links lead somewhere;
named tests exist."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from simshuffle.study.store import CELLS
from tests.shared import shared_folder

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXACT = "README.md"
"""The page whose commands print every line that stands below them."""
TOGETHER = ("docs/tutorial.md",)
"""Pages whose commands follow one another in one folder."""
LONG_PAGES: set[str] = set()
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language):
    out = []
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        found = [m[2] for m in FENCE.finditer(page.read_text()) if m[1] == language]
        for number, block in enumerate(["".join(found)] if found and name in TOGETHER else found):
            out.append(pytest.param(block, id=f"{name}-{number}"))
    return out


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """Where pages keep the cells that they have done: many ask for the same runs and trainings."""
    place = shared_folder(tmp_path_factory) / CELLS
    place.mkdir(exist_ok=True)
    return place


@pytest.fixture
def folder(tmp_path, cells):
    """An empty folder but for the cells that other pages have done, and tests/ of the repository,
    whose files pages name."""
    (tmp_path / "results").mkdir()
    for place in (tmp_path, tmp_path / "results"):
        (place / CELLS).symlink_to(cells)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    return tmp_path


def run(preloaded, arguments, folder):
    """Run a command of a page: simshuffle and Python in a fork, others as they are."""
    program, *words = arguments
    if program == "simshuffle":
        done = preloaded.simshuffle(words, folder, COLUMNS="80")
        status, printed = done.status, done.stdout + done.stderr
    else:
        search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        process = subprocess.run(
            arguments,
            cwd=folder,
            env=os.environ | {"PATH": search},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=900,
            check=False,
        )
        status, printed = process.returncode, process.stdout
    assert status == 0, f"{arguments}\n{printed.decode()[-4000:]}"
    return printed.decode()


@pytest.mark.parametrize("block", blocks("console"))
def test_console(block, folder, preloaded, request):
    first, *parts = re.split(r"^\$ ", block, flags=re.MULTILINE)
    assert parts and not first
    for part in parts:
        command, *lines = part.replace("\\\n", "").splitlines()
        printed = run(preloaded, shlex.split(command, comments=True), folder)
        if EXACT in request.node.name:
            assert set(lines) - {"..."} <= set(printed.splitlines())


@pytest.mark.parametrize("block", blocks("python"))
def test_python(block, folder, preloaded):
    done = preloaded.python(block, folder)
    assert done.status == 0, done.stderr.decode()[-4000:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text()):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_that_a_page_names_exist(page):
    names = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page.read_text())
    assert len(names) > {"tests.md": 150}.get(page.name, -1)
    for file, function in names:
        there = (ROOT / file).read_text()
        assert not function or f"def {function}(" in there, f"{file}::{function}"


def test_every_law_has_its_tests():
    """A row of docs/tests.md for every section of the pages of the model that states a law."""
    others = [
        ROOT / "docs" / name for name in ("jobs.md", "failures.md", "network.md", "topologies.md")
    ]
    pages = [ROOT / "docs" / "model.md", *(ROOT / "docs").glob("model-*.md"), *others]
    laws = [
        (section.split("\n")[0], page.name)
        for page in pages
        for section in re.split(r"^##+ ", page.read_text(), flags=re.MULTILINE)[1:]
        if "**Law" in section
    ]
    assert len(laws) > 12
    shown = (ROOT / "docs" / "tests.md").read_text()
    for law, page in laws:
        assert f"[{law}]({page}#" in shown, law


def test_readme_is_short():
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 600
    assert text.count("](") <= 20


def test_pages_are_at_most_2000_words_long():
    """Those written by hand; a list of those that are not, which only shrinks."""
    long = {
        page.name
        for page in PAGES
        if "reference" not in page.parts and len(page.read_text().split()) > 2000
    }
    assert long <= LONG_PAGES


def test_the_version_is_the_same_everywhere():
    version = re.search(
        r'__version__ = "([^"]+)"', (ROOT / "simshuffle" / "version.py").read_text()
    )[1]
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text()
    assert f"version: {version}" in (ROOT / "CITATION.cff").read_text()
    assert f"[{version}]" in (ROOT / "CHANGELOG.md").read_text()
