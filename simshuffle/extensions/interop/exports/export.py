"""Write a run as a file or folder for another tool, completely or not at all; the
formats.
"""

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
from simshuffle.extensions.interop.exports.program import Program, Tell, make_program
from simshuffle.extensions.interop.exports.source import ExportedRun
from simshuffle.extensions.interop.fabrics import ibsim, infragraph
from simshuffle.extensions.interop.fabrics.imported import ImportedFabric
from simshuffle.extensions.interop.fabrics.network_fabric import (
    fabric_of_network,
    format_graphml,
)
from simshuffle.report.folders import room_for, take_place
from simshuffle.spec.library import suggest_nearest
from simshuffle.version import __version__


@dataclass(frozen=True)
class ExportFormat:
    """The file suffix and the options of a format."""

    suffix: str  # of the file, with its dot; '' for a folder
    # those that it takes beside the run: of 'epoch', 'epochs' (several at once), 'iteration',
    # 'ranks', 'messages'
    options: frozenset[str] = frozenset()


_ITERATION = frozenset({"epoch", "iteration"})
FORMATS = {
    # a timeline of ranks, messages and links, for ui.perfetto.dev or chrome://tracing
    "perfetto": ExportFormat(
        ".json.gz", frozenset({"epoch", "epochs", "ranks", "messages"})
    ),
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
    "infragraph": infragraph.format_infrastructure,
    "ibsim": ibsim.format_net_file,
    "graphml": format_graphml,
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
    """Return the format with a name.

    Raises:
        InputError: there is no such format.
    """
    if name not in FORMATS:
        remedy = suggest_nearest(name, list(FORMATS))
        refuse("--to", "no such format", repr(name), remedy, "command line")
    return FORMATS[name]


def describe_loss(format_name: str, fabric: ImportedFabric) -> list[str]:
    """Return texts about what a format of `NETWORKS` leaves out without a place for it:
    bandwidths of ibsim.
    """
    return ibsim.describe_missing_rates(fabric) if format_name == "ibsim" else []


MARK = "simshuffle-export.json"
"""A file in each folder that was exported: it says so, and that --force may replace it."""


def default_out(source: ExportedRun, format_name: str) -> Path:
    """Return the default path of an export: in the working directory, named after the
    run, and after the format where the suffix is not the format's name.

    Characters that are unusual in names of files become "-"; at most 100 are kept.

    Raises:
        InputError: there is no such format.
    """
    suffix = format_of(format_name).suffix
    name = source.run if suffix == f".{format_name}" else f"{source.run}-{format_name}"
    return Path(re.sub(r"[^A-Za-z0-9._@=-]+", "-", name).strip("-.")[:100] + suffix)


def export(
    source: ExportedRun,
    format_name: str,
    out: Path,
    tell: Tell | None = None,
    *,
    ranks: str | None = None,
    messages: str | None = None,
    replace: bool = False,
) -> list[str]:
    """Write a run in a format to a file, or to a folder where the format has several
    files.

    What was at ``out`` stays until the export is complete. A folder gets the file
    `MARK`, too.

    Args:
        source: the run.
        format_name: name of the format, of `FORMATS`.
        out: the file or folder to write.
        tell: receives the share that is done, from 0 to 1; None for no one.
        ranks: ranks whose lanes a timeline shows, such as '0-3,slowest'; None for the
            default of the verb. Other formats than perfetto ignore it.
        messages: 'chosen' or None for the messages of the ranks that a timeline shows,
            or 'none'. Other formats than perfetto ignore it.
        replace: whether to replace a file, or a folder that was exported, at ``out``.

    Returns:
        lines about the export, for people.

    Raises:
        InputError: there is no such format, ``out`` cannot be written, or the run has
            not what the format needs, such as messages.
    """
    is_folder = not format_of(format_name).suffix
    check_out(out, folder=is_folder, replace=replace)
    tell = tell or (lambda share: None)
    # beside it, then renamed: what was there stays until then
    with room_for(out, out.parent) as draft_folder:
        draft = Path(draft_folder) / out.name
        if format_name == "perfetto":
            # here, as the simulator is loaded only where something is simulated
            from simshuffle.extensions.interop.exports import perfetto  # noqa: PLC0415 - numba

            lines = perfetto.write(source, draft, ranks, messages, tell)
        elif format_name in NETWORKS:
            fabric = fabric_of_network(
                source.scenario.cluster.sketch(), source.reference
            )
            draft.write_text(NETWORKS[format_name](fabric), encoding="utf-8")
            lines = [f"{name}: {count}" for name, count in fabric.counts().items()]
            lines += [f"note: {text}" for text in describe_loss(format_name, fabric)]
        else:
            exchange = make_program(source.scenario, source.epoch, source.iteration)
            lines = PROGRAMS[format_name](exchange, draft, tell)
        if is_folder:
            facts = {
                "format": format_name,
                "source": source.reference,
                "run": source.run,
            }
            mark = json.dumps({**facts, "simshuffle": __version__}, indent=1)
            (draft / MARK).write_text(f"{mark}\n", encoding="utf-8")
        take_place(draft, out)
    return lines


def check_out(out: Path, *, folder: bool, replace: bool) -> None:
    """Check that an export can be written: the folder is there, and ``out`` is free or,
    with ``replace``, a file, an empty folder or an earlier export.

    Args:
        out: the path to write.
        folder: whether the format is a folder.
        replace: whether what is there may be replaced; never a link, or a file by a
            folder.

    Raises:
        InputError: it cannot be written.
    """
    try:
        rule, remedy = _find_obstacle(out, folder, replace)
    except (
        OSError,
        ValueError,
    ) as error:  # a name that is too long, or has a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        rule = f"cannot be written: {reason}"
        remedy = "Choose another name."
    if rule:
        displayed_path = str(out) if len(str(out)) <= 100 else f"{str(out)[:97]}..."
        refuse("--out", rule, repr(displayed_path), remedy, "command line")


def _find_obstacle(out: Path, is_folder: bool, replace: bool) -> tuple[str, str]:
    """Return rule and remedy of what prevents writing to ``out``; '' and '' if nothing
    does. With ``replace``, any file may be replaced, and a folder if it is empty or has
    the file `MARK`; but no link.
    """
    if not out.name or not out.parent.is_dir():
        return "must be in a folder that is there", "Make the folder."
    if not os.access(out.parent, os.W_OK):
        return "must be in a folder that can be written to", "Choose another folder."
    if not os.path.lexists(out):
        return "", ""
    if out.is_dir() != is_folder or out.is_symlink():
        kinds = (
            "must not be a folder or a link",
            "must not be a file or a link",
        )
        return kinds[is_folder], "Choose another name."
    if not replace:
        return (
            "must not be there already",
            "Choose another name, or use --force to replace it.",
        )
    if is_folder and any(out.iterdir()) and not (out / MARK).is_file():
        return "holds other files than an export", "Choose another name."
    return "", ""
