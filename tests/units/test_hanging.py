"""The limit of a test that hangs."""

import subprocess
import sys
from pathlib import Path


def test_a_test_that_hangs_fails_after_its_limit(tmp_path, pytestconfig):
    assert float(pytestconfig.getini("timeout")) > 0
    (tmp_path / "test_it.py").write_text("import time\ndef test_it():\n    time.sleep(60)\n")
    settings = ["-c", str(Path(__file__).parents[2] / "pyproject.toml"), "-o", "timeout=1"]
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *settings, "test_it.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Timeout" in done.stdout
