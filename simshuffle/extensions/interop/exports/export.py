"""The formats, what each takes; and `export`, which writes a file or folder for another tool whole
or not at all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from simshuffle.errors import refuse
from simshuffle.extensions.interop.exports import chakra, goal, htsim, simgrid
from simshuffle.extensions.interop.exports.program import Program, Tell, program
from simshuffle.extensions.interop.exports.source import ExportedRun
from simshuffle.extensions.interop.fabrics import ibsim, infragraph
from simshuffle.extensions.interop.fabrics.imported import ImportedFabric, graphml, of_network
from simshuffle.report.folders import room_for, take_place
from simshuffle.spec.library import suggest_nearest
from simshuffle.version import __version__


@dataclass(frozen=True)
class ExportFormat:
    """A format."""

    suffix: str  # of the file, with its dot; '' for a folder
    # those that it takes beside the run: of 'epoch', 'epochs' (several at once), 'iteration',
    # 'ranks', 'messages'
    options: frozenset[str] = frozenset()


_ITERATION = frozenset({"epoch", "iteration"})
FORMATS = {
    # a timeline of ranks, messages and links, for ui.perfetto.dev or chrome://tracing
    "perfetto": ExportFormat(".json.gz", frozenset({"epoch", "epochs", "ranks", "messages"})),
    # execution traces of an iteration, a file for each rank, for ASTRA-sim
    "chakra": ExportFormat("", _ITERATION),
    # the same with nodes of storage, which ASTRA-sim refuses
    "chakra-storage": ExportFormat("", _ITERATION),
    # a connection matrix of an iteration's messages, and the fat tree below it
    "htsim": ExportFormat("", _ITERATION),
    # a schedule of an iteration's messages, for LogGOPSim and ATLAHS
    "goal": ExportFormat(".goal", _ITERATION),
    # an iteration's messages as an MPI program, with its platform, for smpirun
    "simgrid": ExportFormat("", _ITERATION),
    # the network of the run's cluster: for tools that read InfraGraph, for ibsim, for programs, and
    # as a network of kind custom
    "infragraph": ExportFormat(".json"),
    "ibsim": ExportFormat(".net"),
    "graphml": ExportFormat(".graphml"),
    "json": ExportFormat(".json"),
}
"""By the name that ``--to`` takes."""
NETWORKS: dict[str, Callable[[ImportedFabric], str]] = {
    "infragraph": infragraph.written,
    "ibsim": ibsim.written,
    "graphml": graphml,
    "json": ImportedFabric.to_json,
}
"""What the file of a network holds, by the name of its format."""
PROGRAMS: dict[str, Callable[[Program, Path, Tell], list[str]]] = {
    "chakra": chakra.write,
    "chakra-storage": partial(chakra.write, storage=True),
    "htsim": htsim.write,
    "goal": goal.write,
    "simgrid": simgrid.write,
}
"""What writes the messages of an iteration, by the name of its format."""


def format_of(name: str) -> ExportFormat:
    """The format of that name. Raises an InputError if there is none."""
    if name not in FORMATS:
        remedy = suggest_nearest(name, list(FORMATS))
        refuse("--to", "must be a format", repr(name), remedy, "command line")
    return FORMATS[name]


MARK = "simshuffle-export.json"
"""A file in each folder that was exported: it says so, and that --force may replace it."""


def default_out(source: ExportedRun, to: str) -> Path:
    """Where an export goes if nobody says so: in the working directory, after the run."""
    suffix = format_of(to).suffix
    name = source.run if suffix == f".{to}" else f"{source.run}-{to}"
    return Path(re.sub(r"[^A-Za-z0-9._@=-]+", "-", name).strip("-.")[:100] + suffix)


def export(
    source: ExportedRun,
    to: str,
    out: Path,
    tell: Tell | None = None,
    *,
    ranks: str | None = None,
    messages: str | None = None,
    replace: bool = False,
) -> list[str]:
    """Write a run in the format ``to`` to ``out``: a file, or a folder where the format is several
    files. Of a timeline, ``ranks`` are those whose lanes are wanted, and ``messages`` of which
    ranks, or 'none'. ``replace`` what is there, if it is a file, or a folder that was exported.
    Returns what is to be said of it, a line each. Raises an InputError if there is no such format,
    or ``out`` cannot be written."""
    folder = not format_of(to).suffix
    check_out(out, folder=folder, replace=replace)
    tell = tell or (lambda share: None)
    # beside it, then renamed: what was there stays until then
    with room_for(out, out.parent) as room:
        draft = Path(room) / out.name
        if to == "perfetto":
            # here, as the simulator is loaded only where something is simulated
            from simshuffle.extensions.interop.exports import perfetto  # noqa: PLC0415 - numba

            said = perfetto.write(source, draft, ranks, messages, tell)
        elif to in NETWORKS:
            fabric = of_network(source.scenario.cluster.sketch(), source.reference)
            draft.write_text(NETWORKS[to](fabric), encoding="utf-8")
            said = [f"{name}: {count}" for name, count in fabric.counts().items()]
        else:
            made = program(source.scenario, source.epoch, source.iteration)
            said = PROGRAMS[to](made, draft, tell)
        if folder:
            about = {"format": to, "source": source.reference, "run": source.run}
            mark = json.dumps({**about, "simshuffle": __version__}, indent=1)
            (draft / MARK).write_text(f"{mark}\n", encoding="utf-8")
        take_place(draft, out)
    return said


def check_out(out: Path, *, folder: bool, replace: bool) -> None:
    """See that an export can be written to ``out``. Raises an InputError if it cannot."""
    try:
        rule, remedy = _in_the_way(out, folder, replace)
    except (OSError, ValueError) as error:  # a name that is too long, or has a zero byte
        why = getattr(error, "strerror", None) or str(error)
        rule, remedy = f"cannot be written: {why}", "Choose another name."
    if rule:
        shown = str(out) if len(str(out)) <= 100 else f"{str(out)[:97]}..."
        refuse("--out", rule, repr(shown), remedy, "command line")


def _in_the_way(out: Path, folder: bool, replace: bool) -> tuple[str, str]:
    """Rule and remedy of what is in the way; '' if nothing is."""
    if not out.name or not out.parent.is_dir():
        return "must be in a folder that is there", "Make the folder."
    if not os.access(out.parent, os.W_OK):
        return "must be in a folder that can be written to", "Choose another one."
    if not os.path.lexists(out):
        return "", ""
    if out.is_dir() != folder or out.is_symlink():
        kinds = ("must not be that of a folder or a link", "must not be that of a file or a link")
        return kinds[folder], "Choose another name."
    if not replace:
        return "must not be there already", "Choose another name, or use --force to replace it."
    if folder and any(out.iterdir()) and not (out / MARK).is_file():
        return "holds something else than an export", "Choose another name."
    return "", ""
