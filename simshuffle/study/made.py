"""How a result was made: command, date, commit and machine. It says nothing of what the result is,
so no fingerprint has it, and comparisons of two results leave it out."""

from __future__ import annotations

import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from simshuffle.study.executors import usable_cores

MADE = "made"  # its key in ``meta.json``
_PATIENCE_S = 5.0


def made() -> dict[str, Any]:
    """Command, date (UTC), machine, and the commit of the working directory if there is one; it
    ends in '-dirty' where files in it are changed."""
    program, *words = sys.argv or [""]
    name = Path(program).name
    commit = _commit()
    return {
        "command": shlex.join(["simshuffle" if name == "__main__.py" else name, *words]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **({"commit": commit} if commit else {}),
        "machine": {
            "processor": _processor(),
            "cores": usable_cores(),
            "platform": platform.platform(),
        },
    }


def _commit() -> str:
    """'' without git, or outside a repository."""
    words = ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            ["git", "-c", "core.fsmonitor=false", *words],  # noqa: S607 - the git of the user
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()
