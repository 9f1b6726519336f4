"""Notebooks are stored without output and run from top to bottom."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.preloaded import one_core

ROOT = Path(__file__).parent.parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FIRST = 5
"""Cells within which there is a picture."""


def test_there_are_notebooks():
    assert [path.name for path in NOTEBOOKS] == [
        "01-quickstart.ipynb",
        "02-accuracy-and-time.ipynb",
        "03-your-own-cluster.ipynb",
        "04-reading-a-timeline.ipynb",
        "05-all-to-all-against-pairwise.ipynb",
        "06-your-own-data-set.ipynb",
    ]


def test_the_readme_has_them_all():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"](notebooks/{path.name})" in readme for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_pages_that_a_notebook_names_exist(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            pages = re.findall(r"`(docs/[\w/-]+\.md)`", cell.source)
            links = re.findall(r"\]\((?!https?:)([^)#]+)", cell.source)
            assert all((ROOT / page).is_file() for page in pages)
            assert all((path.parent / link).is_file() for link in links)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_without_output(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("default")  # of the notebook machinery, not of simshuffle
def test_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=900,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    with one_core():
        client.execute()
    outputs = [
        output
        for cell in notebook.cells[:FIRST]
        if cell.cell_type == "code"
        for output in cell.outputs
    ]
    assert any("image/png" in output.get("data", {}) for output in outputs)
