"""The formats: what each is, what it takes, and the module that writes it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from simshuffle.errors import InputError, Problem
from simshuffle.exports.source import Source
from simshuffle.spec.library import nearest

Tell = Callable[[float], None]
"""Told of the share that is done, from 0 to 1."""


@dataclass(frozen=True)
class Asked:
    """Options of the verb that some formats alone take; None for what was not given.

    Attributes:
        ranks: whose lanes are wanted.
        messages: of which ranks, or 'none'.
    """

    ranks: str | None = None
    messages: str | None = None


class Writer(Protocol):
    """A module of a format."""

    def write(self, source: Source, path: Path, asked: Asked, tell: Tell) -> Sequence[str]:
        """Write to ``path``, where nothing is: a file, or a folder that it makes. Returns what is
        to be said of it, a line each."""


@dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        sentence: what it is and what reads it.
        takes: what it is made of: a 'result' of run, a 'scenario', or 'both'.
        suffix: of the file, with its dot; '' for a folder.
        module: whose ``write`` writes it, see `Writer`; imported when it is needed.
        options: those that it takes beside the run: of 'epoch', 'epochs' (several at once),
            'iteration', 'ranks', 'messages'.
    """

    sentence: str
    takes: Literal["result", "scenario", "both"]
    suffix: str
    module: str
    options: frozenset[str] = frozenset()

    @property
    def sends(self) -> bool:
        """Whether it is made of the messages of an iteration."""
        return "iteration" in self.options

    def writer(self) -> Writer:
        """The module that writes it."""
        module: Writer = importlib.import_module(self.module)
        return module


FORMATS = {
    "perfetto": Format(
        "a timeline of ranks, messages and links, for ui.perfetto.dev or chrome://tracing",
        "both",
        ".json.gz",
        "simshuffle.exports.perfetto",
        frozenset({"epoch", "epochs", "ranks", "messages"}),
    ),
    "chakra": Format(
        "execution traces of an iteration, a file for each rank, for ASTRA-sim",
        "both",
        "",
        "simshuffle.exports.chakra",
        frozenset({"epoch", "iteration"}),
    ),
    "htsim": Format(
        "a connection matrix of an iteration's messages, and the fat tree below it, for htsim",
        "both",
        "",
        "simshuffle.exports.htsim",
        frozenset({"epoch", "iteration"}),
    ),
    "goal": Format(
        "a schedule of an iteration's messages in GOAL, for LogGOPSim and ATLAHS",
        "both",
        ".goal",
        "simshuffle.exports.goal",
        frozenset({"epoch", "iteration"}),
    ),
    "simgrid": Format(
        "an iteration's messages as an MPI program, with its platform, for smpirun of SimGrid",
        "both",
        "",
        "simshuffle.exports.simgrid",
        frozenset({"epoch", "iteration"}),
    ),
    "infragraph": Format(
        "the network of the run's cluster, for tools that read InfraGraph",
        "both",
        ".json",
        "simshuffle.exports.infragraph",
    ),
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
