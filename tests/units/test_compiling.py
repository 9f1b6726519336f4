"""When compiled code is loaded, and when it is compiled anew."""

import subprocess
import sys

import pytest

from simshuffle.network.compiling import fingerprint


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
        timeout=120,
    )
    return done.stderr.splitlines()[-1] == "True"


@pytest.mark.parametrize(
    "code",
    [
        "import simshuffle.network.shared, simshuffle.network.replay.case",
        "from simshuffle.scenario.scenario import load_scenario; load_scenario('quickstart')",
        "from simshuffle.cli import main; main(['check', 'quickstart'])",
        "from simshuffle.cli import main; main(['list'])",
    ],
    ids=["import", "scenario", "check", "list"],
)
def test_reading_loads_no_compiled_code(code):
    assert not loaded(code)


def test_a_simulation_does():
    code = "from simshuffle.network import Flows, Fluid, Links\n"
    assert loaded(code + "Fluid().finish_times(Links([1.0], [0.0]), Flows.of([[0]], [1.0]))")


@pytest.mark.parametrize("name", ["a.py", "sub/b.py", "sub/deeper/c.py"])
def test_the_fingerprint_changes_with_any_source_at_any_depth(tmp_path, name):
    (tmp_path / "sub" / "deeper").mkdir(parents=True)
    for source in ("a.py", "sub/b.py", "sub/deeper/c.py"):
        (tmp_path / source).write_text("x = 1\n", encoding="utf-8")
    before = fingerprint(tmp_path)
    (tmp_path / "sub" / "notes.txt").write_text("no source", encoding="utf-8")
    assert fingerprint(tmp_path) == before
    (tmp_path / name).write_text("x = 2\n", encoding="utf-8")
    assert fingerprint(tmp_path) != before
