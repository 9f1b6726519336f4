"""The formats: what each takes, and the module that writes it; and `export`, which writes a file or
folder for another tool whole or not at all."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from simshuffle.errors import InputError, Problem
from simshuffle.exports.source import Source
from simshuffle.results.folders import room_for, take_place
from simshuffle.spec.library import nearest
from simshuffle.version import __version__

Tell = Callable[[float], None]
"""Told of the share that is done, from 0 to 1."""


@dataclass(frozen=True)
class Options:
    """Options of the verb that some formats alone take; None for what was not given."""

    ranks: str | None = None  # whose lanes are wanted
    messages: str | None = None  # of which ranks, or 'none'
    to: str = ""  # the name of the format, which `export` fills in


class Writer(Protocol):
    """A module of a format."""

    def write(self, source: Source, path: Path, options: Options, tell: Tell) -> Sequence[str]:
        """Write to ``path``, where nothing is: a file, or a folder that it makes. Returns what is
        to be said of it, a line each."""


@dataclass(frozen=True)
class Format:
    """A format."""

    suffix: str  # of the file, with its dot; '' for a folder
    module: str  # whose ``write`` writes it, see `Writer`; imported when it is needed
    # those that it takes beside the run: of 'epoch', 'epochs' (several at once), 'iteration',
    # 'ranks', 'messages'
    options: frozenset[str] = frozenset()

    @property
    def sends(self) -> bool:
        """Whether it is made of the messages of an iteration."""
        return "iteration" in self.options

    def writer(self) -> Writer:
        """The module that writes it."""
        module: Writer = importlib.import_module(self.module)
        return module


_TIMELINE = frozenset({"epoch", "epochs", "ranks", "messages"})
_ITERATION = frozenset({"epoch", "iteration"})
NETWORK = "simshuffle.exports.networks"
FORMATS = {
    # a timeline of ranks, messages and links, for ui.perfetto.dev or chrome://tracing
    "perfetto": Format(".json.gz", "simshuffle.exports.perfetto", _TIMELINE),
    # execution traces of an iteration, a file for each rank, for ASTRA-sim
    "chakra": Format("", "simshuffle.exports.chakra", _ITERATION),
    # a connection matrix of an iteration's messages, and the fat tree below it
    "htsim": Format("", "simshuffle.exports.htsim", _ITERATION),
    # a schedule of an iteration's messages, for LogGOPSim and ATLAHS
    "goal": Format(".goal", "simshuffle.exports.goal", _ITERATION),
    # an iteration's messages as an MPI program, with its platform, for smpirun
    "simgrid": Format("", "simshuffle.exports.simgrid", _ITERATION),
    # the network of the run's cluster: for tools that read InfraGraph, for ibsim, for programs, and
    # as a network of kind custom
    "infragraph": Format(".json", NETWORK),
    "ibsim": Format(".net", NETWORK),
    "graphml": Format(".graphml", NETWORK),
    "json": Format(".json", NETWORK),
}
"""By the name that ``--to`` takes."""


def format_of(name: str) -> Format:
    """The format of that name.

    Raises:
        InputError: there is none.
    """
    if name not in FORMATS:
        rule, remedy = "must be a format", nearest(name, list(FORMATS))
        raise InputError(Problem("--to", rule, repr(name), remedy), "command line")
    return FORMATS[name]


MARK = "simshuffle-export.json"
"""A file in each folder that was exported: it says so, and that --force may replace it."""


def default_out(source: Source, to: str) -> Path:
    """Where an export goes if nobody says so: in the working directory, after the run."""
    suffix = format_of(to).suffix
    name = source.run if suffix == f".{to}" else f"{source.run}-{to}"
    return Path(re.sub(r"[^A-Za-z0-9._@=-]+", "-", name).strip("-.")[:100] + suffix)


def export(
    source: Source,
    to: str,
    out: Path,
    options: Options | None = None,
    tell: Tell | None = None,
    *,
    replace: bool = False,
) -> Sequence[str]:
    """Write a run in the format ``to``.

    Args:
        source: the run.
        to: the name of a format.
        out: the file, or the folder where the format is several files.
        options: options that the format takes.
        tell: told of the share that is done.
        replace: what is at ``out``, if it is a file, or a folder that was exported.

    Returns:
        What is to be said of it, a line each.

    Raises:
        InputError: there is no such format, or ``out`` cannot be written.
    """
    kind = format_of(to)
    folder = not kind.suffix
    check_out(out, folder=folder, replace=replace)
    writer = kind.writer()

    # beside it, then renamed: what was there stays until then
    with room_for(out, out.parent) as room:
        draft = Path(room) / out.name
        wanted = dataclasses.replace(options or Options(), to=to)
        said = writer.write(source, draft, wanted, tell or (lambda share: None))
        if folder:
            about = {"format": to, "source": source.reference, "run": source.run}
            mark = json.dumps({**about, "simshuffle": __version__}, indent=1)
            (draft / MARK).write_text(f"{mark}\n", encoding="utf-8")
        take_place(draft, out)
    return said


def check_out(out: Path, *, folder: bool, replace: bool) -> None:
    """See that an export can be written to ``out``.

    Raises:
        InputError: it cannot.
    """
    try:
        rule, remedy = _in_the_way(out, folder, replace)
    except (OSError, ValueError) as error:  # a name that is too long, or has a zero byte
        why = getattr(error, "strerror", None) or str(error)
        rule, remedy = f"cannot be written: {why}", "Choose another name."
    if rule:
        shown = str(out) if len(str(out)) <= 100 else f"{str(out)[:97]}..."
        raise InputError(Problem("--out", rule, repr(shown), remedy), "command line")


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
