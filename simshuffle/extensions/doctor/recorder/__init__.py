"""Watch a training from inside the interpreter that runs it.

The recorder uses the standard library alone, so that it also works where simshuffle is
not installed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

SITE = f"{__path__[0]}/site"
"""Folder to put on PYTHONPATH: its sitecustomize begins to watch if the variable
`FOLDER` is set.
"""
FOLDER = "SIMSHUFFLE_RECORD"
"""Variable of the environment that names the folder of the rows; without it, nothing is
watched.
"""
CHANGES = "SIMSHUFFLE_RECORD_CHANGES"
"""Variable with changes to make, as a JSON object by name: see
`simshuffle.extensions.doctor.recorder.changes.watch_changes`."""
SECONDS = "SIMSHUFFLE_RECORD_SECONDS"
"""Variable with seconds from the first batch on, after which the training is ended in
order, with exit status 0.
"""


def variables(
    folder: str, changes: Mapping[str, Any] | None = None, seconds: float | None = None
) -> dict[str, str]:
    """Return the variables to add to the environment of a process to be watched.

    `FOLDER` and PYTHONPATH always, in which the site of the recorder goes before the
    present value; `SECONDS` and `CHANGES` only if they are given and not empty.

    Args:
        folder: of the rows.
        changes: to make; None for none.
        seconds: from the first batch on, after which the training is ended; None for
            never.
    """
    path = os.environ.get("PYTHONPATH")
    environment = {
        FOLDER: folder,
        "PYTHONPATH": f"{SITE}{os.pathsep}{path}" if path else SITE,
    }
    if seconds is not None:
        environment[SECONDS] = str(seconds)
    if changes:
        import json  # noqa: PLC0415 - only where it is needed

        environment[CHANGES] = json.dumps(changes)
    return environment


watched: Any = None
"""The `simshuffle.extensions.doctor.recorder.process.Process`, once this process is
watched; None before.
"""


def begin() -> None:
    """Watch this process if its environment names a folder that can be written, with
    the changes and seconds of the environment; else do nothing.
    """
    if os.environ.get(FOLDER) and os.access(os.environ[FOLDER], os.W_OK):
        changes: dict[str, Any] = {}
        if os.environ.get(CHANGES):
            import json  # noqa: PLC0415 - only where it is needed

            changes = json.loads(os.environ[CHANGES])
        seconds = os.environ.get(SECONDS)
        watch(os.environ[FOLDER], changes, float(seconds) if seconds else None)


def watch(folder: str, changes: dict[str, Any], seconds: float | None) -> Any:
    """Watch this process from now on, and the processes that it forks.

    Functions of the standard library, torch and others are replaced, at once or when
    they are imported. The process is kept in `watched`.

    Args:
        folder: of the rows.
        changes: to make, by name; {} for none.
        seconds: from the first batch on, after which the training is ended; None for
            never.

    Returns:
        The `simshuffle.extensions.doctor.recorder.process.Process`, whose `end` ends
        watching.
    """
    from .calls import watch_calls  # noqa: PLC0415 - not where nothing is watched
    from .changes import watch_changes  # noqa: PLC0415
    from .fetching import watch_fetching  # noqa: PLC0415
    from .files import watch_files  # noqa: PLC0415
    from .known_calls import watch_known_calls  # noqa: PLC0415
    from .loops import watch_loops  # noqa: PLC0415
    from .process import Process  # noqa: PLC0415
    from .settings import watch_settings  # noqa: PLC0415
    from .steps import watch_steps  # noqa: PLC0415

    global watched  # noqa: PLW0603 - of the process
    process = watched = Process(folder, changes, seconds)
    watch_files(process.patches, process.files, process.call_log)
    watch_calls(process.patches)
    watch_known_calls(process.patches, process.call_log)
    watch_changes(process)
    watch_settings(process)
    watch_loops(process)
    watch_fetching(process)
    watch_steps(process)
    return process
