"""The compiled kernel once more with bounds checking on: an index out of range would be silent
otherwise."""

import os
import subprocess
import sys
from pathlib import Path


def test_no_index_leaves_its_array(tmp_path):
    variables = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_OPT": "1"}
    environment = os.environ | variables
    here = Path(__file__).parent
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(here / "test_fluid.py"),
        "-k",
        "many or solver or posted",
    ]
    done = subprocess.run(
        command,
        cwd=here.parent.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
