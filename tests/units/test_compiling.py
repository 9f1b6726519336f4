"""When compiled code is loaded, when it is compiled anew, and how it finds its arrays."""

import json
import logging
import os
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest

from simshuffle import load_scenario, run
from simshuffle.cli.common import reset_volume, set_volume
from simshuffle.fabric.network import Analytic, Fluid, Packet, fluid_events, fluid_transfers
from simshuffle.fabric.network import packet_kernel as kernel
from simshuffle.fabric.network.models import load_model
from simshuffle.spec import compiling
from simshuffle.spec.compiling import at_address, entry, fingerprint, words
from tests.plain_kernels import ENDS


def loaded(code):
    """Whether numba is imported after ``code``."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys\n{code}\nprint('numba' in sys.modules, file=sys.stderr)",
        ],
        capture_output=True,
        check=True,
        text=True,
        timeout=900,
    )
    return done.stderr.splitlines()[-1] == "True"


@pytest.mark.parametrize(
    "code",
    [
        "import simshuffle.fabric.network.models, simshuffle.fabric.network.case",
        "from simshuffle.job.scenario.scenario import load_scenario; load_scenario('quickstart')",
    ],
    ids=["import", "scenario"],
)
def test_reading_loads_no_compiled_code(code):
    assert not loaded(code)


@pytest.mark.parametrize("verb", ["plot", "show"])
def test_a_result_is_shown_and_drawn_without_compiled_code(result_of, verb):
    words = ["results", verb, str(result_of("simulation"))]
    assert not loaded(f"from simshuffle.cli import main; assert main({words!r}) == 0")


def test_a_simulation_does():
    code = "from simshuffle.fabric.network import Flows, Fluid, Links\n"
    assert loaded(
        code + "Fluid().finish_times(Links([1.0], [0.0]), Flows.from_lists([[0]], [1.0]))"
    )


@pytest.mark.parametrize("name", ["a.py", "sub/b.py", "sub/deeper/c.py"])
def test_the_fingerprint_changes_with_any_source_at_any_depth(tmp_path, name):
    (tmp_path / "sub" / "deeper").mkdir(parents=True)
    for source in ("a.py", "sub/b.py", "sub/deeper/c.py"):
        (tmp_path / source).write_text("x = 1\n")
    before = fingerprint(tmp_path)
    (tmp_path / "sub" / "notes.txt").write_text("no source")
    assert fingerprint(tmp_path) == before
    (tmp_path / name).write_text("x = 2\n")
    assert fingerprint(tmp_path) != before


# ------------------------------------------------------------------------------- compiled for once

KERNEL = """
import sys
from simshuffle.spec.compiling import compiled, entry

@compiled
def twice(value: int) -> int:
    return 2 * value

@entry
def four_times(value: int) -> int:
    total = 0
    for i in range(value):
        total += twice(twice(1))
    return total

print(four_times(10), "numba.np.linalg" in sys.modules)
"""


@pytest.fixture
def script(tmp_path):
    """Starts a process that calls a kernel of its own, whose machine code is kept apart."""
    path = tmp_path / "script.py"
    path.write_text(KERNEL)

    def start():
        return subprocess.Popen(
            [sys.executable, path],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kernels")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def test_one_of_the_processes_that_begin_together_compiles_and_says_so_once(script):
    together = [process.communicate(timeout=900) for process in [script() for _ in range(3)]]
    assert [out.split()[0] for out, _ in together] == ["40", "40", "40"]
    assert sorted(errors for _, errors in together) == ["", "", compiling.ONCE + "\n"]
    # what is there already is loaded without what only compiling needs
    assert script().communicate(timeout=900) == ("40 False\n", "")


def test_that_something_is_compiled_is_not_said_to_who_wants_errors_alone(caplog):
    said = compiling._announce_compilation.__wrapped__
    try:
        set_volume(quiet=True, verbose=False)
        said()
        assert caplog.records == []
    finally:
        reset_volume()
    said()
    assert caplog.record_tuples == [("simshuffle", logging.WARNING, compiling.ONCE)]


@pytest.mark.parametrize(
    "model", [Fluid(), Analytic(), Packet()], ids=["fluid", "analytic", "packet"]
)
def test_what_was_made_ready_is_all_that_a_run_needs(model):
    """A kernel that a run calls with other types would be compiled while it runs."""
    load_model(model)
    kernels: Any = [fluid_events.post, fluid_transfers.advance]
    kernels += [fluid_transfers.complete, fluid_transfers.settle, fluid_transfers.count_down]
    kernels += [kernel.advance] if model == Packet() else []
    ready = [list(kernel.signatures) for kernel in kernels]
    values = {"sweep": {}, "world_size": 4, "epochs": 1, "workload.dataset.num_samples": 256}
    run(load_scenario("quickstart", {**values, "network.kind": model.kind}))
    assert [list(kernel.signatures) for kernel in kernels] == ready


@pytest.mark.parametrize("tolerance", [0.0, 0.01], ids=["exact", "windows"])
def test_a_run_is_made_ready_with_all_that_reads_and_simulates_it(tolerance):
    """And without what it does not need: scipy takes longer to load than a short run."""
    scenario = load_scenario("quickstart", {"sweep": {}, "time_tolerance": tolerance})
    code = (
        "import json, sys\n"
        "from simshuffle.job.scenario.scenario import Scenario\n"
        "from simshuffle.job.sim.cell import RunCell\n"
        "RunCell(json.load(sys.stdin), 'run').make_ready()\n"
        "print(Scenario.__pydantic_complete__, 'scipy.special' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(scenario.to_dict()),
        capture_output=True,
        check=True,
        text=True,
        timeout=900,
    )
    assert done.stdout.split() == ["True", str(tolerance > 0)]


# -------------------------------------------------------------------------- arrays at an address


class Table(NamedTuple):
    """Arrays of all kinds that a network has."""

    width: int
    values: Any
    records: Any
    words: Any


ROW = np.dtype([("key", "f8"), ("link", "i4")], align=True)


def table(rows=0, columns=0):
    return Table(
        columns,
        np.arange(rows * columns, dtype=float).reshape(rows, columns),
        np.zeros(rows, ROW),
        np.arange(rows, dtype=np.uint32),
    )


table_at = at_address(table)


@entry
def fill_in(address: int, row: int) -> float:
    t = table_at(address)
    t.records[row].key = t.values[row, t.width - 1]
    t.records[row].link = t.words[row] + t.values.shape[0] * t.values.shape[1]
    return float(t.values[-1, 0])


def test_compiled_code_reads_and_writes_the_arrays_that_python_holds():
    for rows, columns in ((3, 4), (5, 2)):
        held = table(rows, columns)
        at = words(held)
        assert fill_in(at.ctypes.data, 1) == held.values[-1, 0]
        assert held.records[1].item() == (held.values[1, -1], 1 + rows * columns)
        assert not held.records[[0, 2]]["link"].any()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("model", sorted(ENDS))
def test_the_kernels_as_plain_python_give_the_same_to_the_last_bit(model, seed):
    """The slow twin: the same functions without numba, with arrays found by ctypes."""
    words = [sys.executable, "-m", "tests.plain_kernels", model, str(seed)]
    done = subprocess.run(words, capture_output=True, check=True, text=True, timeout=900)
    found = json.loads(done.stdout)
    assert len(found) >= 40
    assert found == ENDS[model](seed)


def test_only_whole_arrays_can_be_held():
    held = table(3, 4)
    with pytest.raises(ValueError, match="values"):
        words(held._replace(values=held.values.T))
