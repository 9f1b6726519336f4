"""The one body of all verbs that make a result: find it or make it, keep it, show it."""

from __future__ import annotations

import json as json_
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simshuffle.cli.common import Stopped, choice, complain, detail, loaded, say, study_progress
from simshuffle.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.table import Table

    from simshuffle.study.executors import Executor
    from simshuffle.study.store import Store
    from simshuffle.study.study import Request, Result, Study

Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Result folder; the default is results/VERB-NAME-FINGERPRINT."
    ),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print the tables as JSON on standard output, and nothing else."),
]
To = Annotated[
    str | None,
    choice(
        "--to",
        "latex",
        "markdown",
        metavar="FORMAT",
        text="latex (booktabs) or markdown: print the tables so on standard output, and nothing"
        " else.",
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace the result that is in the result folder.")
]
ProcessCount = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Processes at once; the default is one on each core."),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Compute on the workers of this Dask scheduler (extra cluster)."
    ),
]
BY_NAME = {"run", "train"}
"""Verbs whose folders are called by the name of the scenario or study alone."""


@dataclass(frozen=True)
class Options:
    """What every verb is told of where and how.

    Attributes:
        out: the result folder; None for the default.
        json: print JSON and nothing else.
        force: replace a result.
        processes: at once; None for one on each core.
        scheduler: address of a Dask scheduler; None for this machine.
        noun: what a cell is called in the progress.
        done: what was done with it.
        to: print the tables in that format and nothing else; None for those of a terminal.

    Raises:
        InputError: a format and JSON are wanted.
    """

    out: Path | None = None
    json: bool = False
    force: bool = False
    processes: int | None = None
    scheduler: str | None = None
    noun: str = "run"
    done: str = "simulated"
    to: str | None = None

    def __post_init__(self) -> None:
        check_format(self.json, self.to)


def check_format(json: bool, to: str | None) -> None:
    """See that JSON is not wanted beside the format ``to``.

    Raises:
        InputError: it is.
    """
    if json and to is not None:
        rule, remedy = "cannot be combined with --json", "Leave one out."
        raise InputError(Problem("--to", rule, to, remedy), "command line")


def carry_out(study: Study[Any], request: Request[Any], options: Options) -> Result:
    """Find the result of a request or make it, and show it; returns it.

    Raises:
        SimshuffleError: the folder cannot be used, or the study fails.
        Stopped: some of it is kept.
        Exit: some of its cells are lost.
    """
    result, folder = make(study, request, options)
    show(result, folder, json=options.json, to=options.to)
    if lost := result.meta.get("lost"):
        complain(f"{len(lost)} {options.noun}s were lost; the same command tries them again.")
        raise typer.Exit(1)
    return result


def make(study: Study[Any], request: Request[Any], options: Options) -> tuple[Result, Path]:
    """Find the result of a request or make it; returns it and its folder.

    Raises:
        SimshuffleError: the folder cannot be used, or the study fails.
        Stopped: some of it is kept.
    """
    from simshuffle.results.folders import check_place
    from simshuffle.study import engine
    from simshuffle.study.study import fingerprint, versions

    wanted = fingerprint(study, request)
    plain = request.name.replace("/", "-")
    name = f"{plain}-{wanted}" if study.verb in BY_NAME else f"{study.verb}-{plain}-{wanted}"
    folder = options.out if options.out is not None else Path("results") / name
    known = versions(study.versions)
    detail(", ".join(f"{package} {known[package]}" for package in study.versions))
    detail(f"fingerprint {wanted}, result folder {folder}")
    found = None if options.force else engine.existing(study, folder, wanted)
    if found is not None:
        say(f"{folder} already holds this result; nothing was {options.done}.")
        return found, folder
    replace = options.force or engine.goes_on(folder, wanted)
    # before a long simulation, not after it
    check_place(folder, replace=replace, known=study.names)
    with engine.alone(folder):
        executor, store = _executor(options), _store(study, request, folder, options)
        loaded()
        try:
            with study_progress(options.noun) as progress:
                result = engine.run(study, request, executor, store, progress)
                result.save(folder, replace=replace)
        except engine.Interrupted as stop:
            if not stop.done:
                raise
            empty = not folder.exists() or not any(folder.iterdir())
            if stop.result and (empty or engine.goes_on(folder, wanted)):
                stop.result.save(folder, replace=True, draw=False)  # at once; plot draws it
            rest = "are kept; the same command goes on with them."
            said = f"Interrupted. {stop.done} of {stop.total} {options.noun}s {rest}"
            raise Stopped(said) from None
    return result, folder


def _executor(options: Options) -> Executor:
    from simshuffle.study.executors import Local

    if options.scheduler is None:
        return Local(options.processes)
    try:
        from simshuffle.study.cluster import Cluster
    except ImportError:
        rule, remedy = "needs the package distributed", "pip install 'simshuffle[cluster]'"
        raise InputError(
            Problem("--scheduler", rule, options.scheduler, remedy), "command line"
        ) from None
    return Cluster(options.scheduler)


def _store(study: Study[Any], request: Request[Any], folder: Path, options: Options) -> Store:
    """Where outcomes are kept: on disk, but for a study of a single cell, whose result is its only
    outcome."""
    from simshuffle.study.cell import digest_of
    from simshuffle.study.store import CELLS, Disk, Memory

    disk = Disk((folder.parent / CELLS).absolute())
    if not study.stages:
        return Memory()
    cells = list(study.stages[0](request.values, {}).values())
    kept = 0
    for cell in cells:
        there = disk.has(digest_of(cell), cell.parts)
        kept += there
        detail(f"{options.noun} {cell.label}: {'is there already' if there else 'to be done'}")
    if kept:
        say(f"{kept} of {len(cells)} {options.noun}s are there already.")
    single = len(study.stages) == 1 and len(cells) <= 1 and not study.partial
    return Memory() if single and not kept and options.scheduler is None else disk


def show(
    result: Result, folder: Path | None, *, json: bool, to: str | None = None, width: int = 100
) -> None:
    """Print a result, and where it is if it stays there; ``width`` in columns where there is no
    terminal."""
    if json:
        print_json(result.as_json())
        return
    print_parts(result.exported() if to else result.parts(), to, width)
    if folder is not None and to is None:
        figures = _figures(sorted(folder.glob("*.png")))
        typer.echo(f"Tables: {folder}" + (f"\n{figures}" if figures else ""))


def print_json(values: Any) -> None:
    """Print plain values, and those of numpy, as JSON."""
    text = json_.dumps(values, indent=1, allow_nan=False, default=lambda value: value.item())
    typer.echo(text)


def print_parts(parts: Iterable[str | Table], to: str | None = None, width: int = 100) -> None:
    """Print texts and tables, as a terminal shows them or in that format; ``width`` in columns
    where there is no terminal."""
    if to is not None:
        from simshuffle.results.export import exported

        typer.echo(exported(parts, to), nl=False)
        return
    from rich.console import Console

    from simshuffle.results.console import print_whole

    console = Console(width=None if sys.stdout.isatty() else width)
    for part in parts:
        print_whole(console, part)


def _figures(paths: Sequence[Path]) -> str:
    """Where the figures are; '' if there are none."""
    if not paths:
        return ""
    if len(paths) == 1:
        return f"Figure: {paths[0]} and {paths[0].with_suffix('.pdf')}"
    both = "both" if len(paths) == 2 else "all"
    return f"Figures: {', '.join(map(str, paths))}, and {both} as .pdf"
