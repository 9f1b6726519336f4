"""Origin of a result: the command, date, machine and commit that ``meta.json`` names."""

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


def describe_origin() -> dict[str, Any]:
    """Describe how a result was made: command, date (UTC), machine, and the commit of
    the working directory if there is one, which ends in '-dirty' where files in it are
    changed.

    It does not describe the result, so fingerprints leave it out, and comparisons of
    results too. The command is that of this process (`sys.argv`), whatever it runs.

    Returns:
        ``command``, ``date`` (ISO 8601), ``commit`` (left out where there is none), and
        ``machine`` with ``processor``, ``cores`` (those this process may use) and
        ``platform``.
    """
    program, *words = sys.argv or [""]
    name = Path(program).name
    commit = _commit()
    return {
        "command": shlex.join(
            ["simshuffle" if name == "__main__.py" else name, *words]
        ),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **({"commit": commit} if commit else {}),
        "machine": {
            "processor": _processor(),
            "cores": usable_cores(),
            "platform": platform.platform(),
        },
    }


def _commit() -> str:
    """Return the commit of the working directory, 40 digits, with '-dirty' where files
    are changed; '' without git, outside a repository, or if git takes too long.
    """
    words = ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    try:
        git_process = subprocess.run(  # noqa: S603 - fixed words
            ["git", "-c", "core.fsmonitor=false", *words],  # noqa: S607 - the git of the user
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""
    return git_process.stdout.strip() if git_process.returncode == 0 else ""


def _processor() -> str:
    """Return the name of this machine's processor, or its architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    model_name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return (
        model_name[1].strip()
        if model_name
        else platform.processor() or platform.machine()
    )
