"""Notebooks are stored without output and run from top to bottom."""

import json
import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parent.parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_CELLS = 8
"""Most cells of code in a notebook."""


def test_there_are_notebooks_and_the_tutorial_has_them_all():
    topics = ("tutorial", "accuracy-and-time", "what-to-buy", "reading-a-timeline")
    topics += ("all-to-all-against-pairwise", "your-own-data-set")
    names = [f"{number:02}-{topic}.ipynb" for number, topic in enumerate(topics, 1)]
    assert [path.name for path in NOTEBOOKS] == names
    tutorial = (ROOT / "docs" / "tutorial.md").read_text()
    assert all(f"](../notebooks/{name})" in tutorial for name in names)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_pages_that_a_notebook_names_exist_and_it_is_stored_without_output(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            pages = re.findall(r"`(docs/[\w/-]+\.md)`", cell.source)
            links = re.findall(r"\]\((?!https?:)([^)#]+)", cell.source)
            assert all((ROOT / page).is_file() for page in pages)
            assert all((path.parent / link).is_file() for link in links)
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_begins_with_a_question_and_ends_with_a_sentence_below_its_figure(path):
    cells = nbformat.read(path, as_version=4).cells
    title = cells[0].source.splitlines()[0]
    assert title.startswith("# ") and title.endswith("?")
    kinds = [cell.cell_type for cell in cells]
    assert kinds.count("code") <= MOST_CELLS and kinds[-2:] == ["code", "markdown"]
    assert len(re.findall(r"\.(?:\s|$)", cells[-1].source)) == 1


# what Jupyter's kernel does with the cells, without the seconds that it takes to begin
RUN = """
import json, warnings
from pathlib import Path
from IPython.core.displayhook import CapturingDisplayHook
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

class Shell(InteractiveShell):
    def enable_gui(self, gui=None):
        pass

warnings.simplefilter("default")
shell, shown, pictures = Shell.instance(), [], []
shell.display_trap.hook = CapturingDisplayHook(shell=shell, outputs=shown)
for number, source in enumerate(json.loads(Path({cells!r}).read_text())):
    shown.clear()
    with capture_output() as found:
        done = shell.run_cell(source)
    if not done.success:
        print(source, found.stdout, found.stderr, sep="\\n")
        done.raise_error()
    shown += [dict(data=each.data) for each in found.outputs]
    pictures += [number for each in shown if "image/png" in each["data"]]
assert pictures == [number], pictures
"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path, tmp_path, preloaded):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    sources = tmp_path / "cells.json"
    sources.write_text(json.dumps([cell.source for cell in cells]))
    here = tmp_path / "here"
    here.mkdir()
    done = preloaded.python(RUN.format(cells=str(sources)), here)
    assert done.status == 0, (done.stdout + done.stderr).decode()[-6000:]
