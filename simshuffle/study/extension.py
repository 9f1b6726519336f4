"""Extension: the commands, functions, schemas and figures that a folder of
``extensions/`` adds beside verbs that make results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PaperFigure:
    """A kind of figure for papers.

    Attributes:
        kind: "module:CONSTANT", a `simshuffle.studies.presentation.catalogue.Kind`.
        shows: what the figure shows, as a sentence.
    """

    kind: str
    shows: str


@dataclass(frozen=True)
class Extension:
    """The additions of a folder of ``extensions/``, as the ``EXTENSION`` of its module
    ``extension``.

    Modules and functions are named, not imported, so that ``simshuffle --help`` answers
    at once.

    Attributes:
        commands: modules with verbs that make no result, as ``app`` (of typer), and the
            group of verbs that each is in: '', 'study', 'machine' or 'results'.
        functions: public functions ("module:function") by their name below
            ``simshuffle``.
        schemas: functions ("module:function") that return the JSON Schema of a kind of
            file, by the kind.
        figures: kinds of figures for papers, by name.
        folders: remedies, as sentences, for kinds of result folders that no study
            reads, by kind.
        measured: readers ("module:function") of measured runs, by what they read. Each
            returns the rows of a path, as plain values of
            `simshuffle.job.scenario.measured.MeasuredEpoch`, or None if the path is of
            another format.
    """

    commands: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[str, str] = field(default_factory=dict)
    schemas: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, PaperFigure] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    measured: Mapping[str, str] = field(default_factory=dict)
