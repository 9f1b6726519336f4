"""Settings and results that all tests share."""

import gc
import importlib
import io
import math
import os
import shutil
import signal
from collections import Counter
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer.main
from hypothesis import HealthCheck, settings

from simshuffle.study import executors, origin, standing
from simshuffle.study.perform import Performance
from simshuffle.study.store import CELLS, Disk
from tests.preloaded import Preloaded, one_core
from tests.shared import once, shared_folder

settings.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")

# a shell that starts the tests in the background has them ignore Ctrl-C, which some of them send
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


CUTTING = ("get_glyphs_subset", "font_as_file")
"""Of matplotlib: what cuts a font down to some letters, and what writes it."""


@pytest.fixture(scope="session")
def results_made(tmp_path_factory):
    """Result folders by kind of `tests.fuzz.results`, made once for all; not to be changed."""
    from tests.fuzz.results import made

    place = shared_folder(tmp_path_factory)

    def of(kind):
        name = kind.replace(" ", "_")
        return once(place / f"tiny-{name}", lambda there: made(kind, there)) / name / "result"

    return of


@pytest.fixture
def result_of(results_made, tmp_path):
    """A copy of the result folder of a kind."""
    return lambda kind: shutil.copytree(results_made(kind), tmp_path / "result")


LONGEST = (
    "docs/test_commands",
    "docs/test_notebooks",
    "units/test_cli",
    "physics/test_ddp_equivalence",
    "orders/test_paper_orders",
    "units/test_bad_input",
    "units/test_mechanisms",
    "physics/test_page_cache",
    "units/test_validation",
    "units/test_train_faults",
    "units/test_interrupt",
    "units/test_wheel",
    "orders/test_importance_orders",
)
"""Files that take longest, to begin with, so that none is left over for one core at the end."""


def pytest_addoption(parser):
    parser.addoption("--shard", metavar="K/N", help="run the K-th of N parts of all tests")


def pytest_collection_modifyitems(config, items):
    """Put the longest files first, and keep the order of all others; with --shard, leave those of
    other parts out. A part has every N-th of the files, by their numbers of tests."""
    if shard := config.getoption("--shard"):
        part, parts = map(int, shard.split("/"))
        counts = Counter(item.nodeid.split("::")[0] for item in items)
        # the files of LONGEST one to each part in turn, then all others, those of most tests first
        files = sorted(counts, key=lambda name: (place_of(name), -counts[name], name))
        chosen = set(files[part - 1 :: parts])
        left_out = [item for item in items if item.nodeid.split("::")[0] not in chosen]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid.split("::")[0] in chosen]
    items.sort(key=lambda item: place_of(item.nodeid.split("::")[0]))


def place_of(name):
    """The place of a file among the longest, behind all of them for others."""
    short = name.removeprefix("tests/").removesuffix(".py")
    return LONGEST.index(short) if short in LONGEST else len(LONGEST)


def pytest_collection_finish():
    """Leave out of every search for garbage what all tests hold: their modules and themselves."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_calibration():
    """Nothing is known of what cells took on this machine, and nothing is noted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", os.devnull)
        if "MPLCONFIGDIR" not in os.environ:  # which matplotlib would look for there too
            patch.setenv("MPLCONFIGDIR", str(Path.home() / ".cache" / "matplotlib"))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_lines_of_progress():
    """None comes after 5 s, which a busy machine needs where a quiet one does not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(standing, "FIRST_LINE", math.inf)
        yield


@pytest.fixture(scope="session", autouse=True)
def fonts_cut_once():
    """What a PDF has of a font is made once of the same letters: a third of the time of a figure,
    of which many tests draw the same. Not a byte is another one."""
    module = importlib.import_module("matplotlib.backends._backend_pdf_ps")
    cut, written = (getattr(module, name) for name in CUTTING)

    @cache
    def made(font, glyphs):
        with cut(font, set(glyphs)) as found:
            return SimpleNamespace(
                font=written(found.font).getvalue(), glyph_index_map=found.glyph_index_map
            )

    with pytest.MonkeyPatch.context() as patch:
        kept = (lambda font, glyphs: nullcontext(made(font, frozenset(glyphs)))), io.BytesIO
        for name, stand_in in zip(CUTTING, kept, strict=True):
            if hasattr(module, "SubsetResults"):  # matplotlib before 3.11 cuts otherwise
                patch.setattr(module, name, stand_in)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_command_line():
    """Verbs and options are put together once for all calls of `main`; typer does it in each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_idle_core():
    """A study that names no number of processes does its cells in this one: other tests have the
    other cores, and a process imports for longer than most cells last."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executors, "usable_cores", lambda: 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def commit_asked_once():
    """git is asked once for the commit of this checkout, which every result would ask for."""
    ask, checkout = origin._commit, Path.cwd()
    once_asked = cache(ask)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(origin, "_commit", lambda: once_asked() if Path.cwd() == checkout else ask())
        yield


@pytest.fixture
def cells_kept(tmp_path_factory, monkeypatch):
    """A cell is done once for all tests that use this, whichever study asks for it."""
    place = shared_folder(tmp_path_factory) / CELLS
    monkeypatch.setattr(Performance, "_choose_store", lambda *_: Disk(place))


@pytest.fixture(scope="session")
def preloaded():
    """Runs commands in processes of their own, quickly, on one core."""
    with one_core():
        process = Preloaded()
    yield process
    process.end()


@pytest.fixture
def one_thread():
    """torch computes with one thread, and draws the same every time."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working directory, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Runs the command line in an empty folder with some files; returns the message of the
    refusal."""

    def call(arguments, files=None):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # of a user's script that is run
        for name, content in (files or {}).items():
            path = tmp_path / name
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        status = importlib.import_module("simshuffle.cli").main(arguments)
        captured = capsys.readouterr()
        assert status == 2, captured.err
        assert "Traceback" not in captured.err + captured.out
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        assert [path for path in tmp_path.rglob("*") if path.is_dir()] == []
        return captured.err

    return call
