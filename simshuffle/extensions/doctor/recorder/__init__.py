"""What watches a training from inside, in the interpreter that runs it: the standard library alone,
so that it also works where simshuffle is not installed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

SITE = f"{__path__[0]}/site"
"""Folder to put on PYTHONPATH: its sitecustomize begins to watch, if the environment says so."""
FOLDER = "SIMSHUFFLE_RECORD"
"""Variable of the environment that names the folder of the rows; without it, nothing is watched."""
CHANGES = "SIMSHUFFLE_RECORD_CHANGES"
"""Changes to make, as JSON: see `simshuffle.extensions.doctor.recorder.changes.watch_changes`."""
SECONDS = "SIMSHUFFLE_RECORD_SECONDS"
"""After so many, from the first batch on, the training is ended in order, with exit status 0."""


def variables(
    folder: str, changes: Mapping[str, Any] | None = None, seconds: float | None = None
) -> dict[str, str]:
    """What the environment of a process says so that it is watched; as of `watch`."""
    found = os.environ.get("PYTHONPATH")
    out = {FOLDER: folder, "PYTHONPATH": f"{SITE}{os.pathsep}{found}" if found else SITE}
    if seconds is not None:
        out[SECONDS] = str(seconds)
    if changes:
        import json  # noqa: PLC0415 - only where it is needed

        out[CHANGES] = json.dumps(changes)
    return out


watched: Any = None
"""The `simshuffle.extensions.doctor.recorder.process.Process`, once this one is watched."""


def begin() -> None:
    """Watch this process if its environment says so."""
    if os.environ.get(FOLDER) and os.access(os.environ[FOLDER], os.W_OK):
        changes: dict[str, Any] = {}
        if os.environ.get(CHANGES):
            import json  # noqa: PLC0415 - only where it is needed

            changes = json.loads(os.environ[CHANGES])
        seconds = os.environ.get(SECONDS)
        watch(os.environ[FOLDER], changes, float(seconds) if seconds else None)


def watch(folder: str, changes: dict[str, Any], seconds: float | None) -> Any:
    """Watch this process from now on.

    Args:
        folder: of the rows.
        changes: to make.
        seconds: after which the training is ended; None for never.

    Returns:
        the `simshuffle.extensions.doctor.recorder.process.Process`, whose `end` ends it.
    """
    from .calls import watch_calls  # noqa: PLC0415 - not where nothing is watched
    from .changes import watch_changes  # noqa: PLC0415
    from .fetching import watch_fetching  # noqa: PLC0415
    from .files import watch_files  # noqa: PLC0415
    from .loops import watch_loops  # noqa: PLC0415
    from .process import Process  # noqa: PLC0415
    from .steps import watch_steps  # noqa: PLC0415

    global watched  # noqa: PLW0603 - of the process
    process = watched = Process(folder, changes, seconds)
    watch_files(process.patches, process.files)
    watch_calls(process.patches)
    watch_changes(process)
    watch_loops(process)
    watch_fetching(process)
    watch_steps(process)
    return process
