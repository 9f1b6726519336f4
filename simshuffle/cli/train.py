"""The verb that trains: studies of real trainings on emulated ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simshuffle.cli.common import SetOption, say, values
from simshuffle.errors import InputError, Problem

if TYPE_CHECKING:
    from simshuffle.studies.training.folder import Result
    from simshuffle.train.pool import Progress, Standing

app = typer.Typer()

INTERRUPTED = 130
FIRST_LINE, NEXT_LINE = 10.0, 60.0
"""s until the first line about the time left, and between two of them, where there is no
terminal."""


@app.command()
def train(
    study: Annotated[
        str, typer.Argument(metavar="STUDY", help="A study file, or a name below studies/.")
    ],
    set_: SetOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Result folder; the default is results/NAME-FINGERPRINT.")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Processes at once; the default is all cores, or one on a GPU."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="What trains: auto (a GPU if there is one), cpu, cuda, or cuda:N.")
    ] = "auto",
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print runs and summary as JSON on standard output, and nothing else."
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Begin anew: remove what is in the result folder first.")
    ] = False,
) -> None:
    """Train every run of STUDY on emulated ranks and write tables, a report and figures. A stopped
    study goes on when called again."""
    device = _available(device)
    from simshuffle.cli.data_optimised import is_data_optimised, train_data_optimised

    at_once = processes or (None if device == "cpu" else 1)
    given = values(set_ or [])
    if is_data_optimised(study):
        train_data_optimised(
            study,
            given,
            out=out,
            processes=at_once,
            device=device,
            json=json,
            force=force,
            bars=_progress,
        )
    else:
        result, folder = _train_shuffling(
            study, given, out=out, processes=at_once, device=device, force=force
        )
        _show(result, folder, json=json)


def train_study(reference: str, given: dict[str, Any], processes: int | None) -> Path:
    """The result folder of a study of shuffling strategies, which is trained as by `train`; runs
    that are there are kept.

    Raises:
        InputError: there is no such study, or it is of another kind.
    """
    device = _available("auto")
    from simshuffle.cli.data_optimised import is_data_optimised

    if is_data_optimised(reference):
        problem = Problem(
            "kind",
            "must be a study of shuffling strategies",
            "data_optimised",
            "Name another study.",
        )
        raise InputError(problem, reference)
    return _train_shuffling(
        reference,
        given,
        out=None,
        processes=processes or (None if device == "cpu" else 1),
        device=device,
        force=False,
    )[1]


def _train_shuffling(
    reference: str,
    given: dict[str, Any],
    *,
    out: Path | None,
    processes: int | None,
    device: str,
    force: bool,
) -> tuple[Result, Path]:
    """A study of shuffling strategies, trained to its end: its result and its folder."""
    from simshuffle.studies.training import folder as folders
    from simshuffle.train import shuffling
    from simshuffle.train.study import load_study

    study = load_study(reference, given)
    jobs = shuffling.jobs_of(study, device)
    meta = shuffling.meta_of(study, jobs, device)
    name = study.name.replace("/", "-")
    folder = out if out is not None else Path("results") / f"{name}-{meta['fingerprint']}"
    result = None if force else folders.existing(folder, meta["fingerprint"])
    if result is not None:
        say(f"{folder} already holds this study, finished; nothing was trained.")
    else:
        folders.begin(folder, meta, study.to_yaml(), force=force)
        earlier = _nothing if out is not None or force else _earlier(name)
        with (
            _stoppable(folder, [folder / folders.RUNS / name for name in jobs]),
            _progress(len(jobs)) as progress,
        ):
            result, outcome = shuffling.carry_out(
                jobs, folder, processes=processes, progress=progress, earlier=earlier
            )
        say(f"{len(outcome.made)} runs trained; {len(outcome.kept)} were there.")
    return result, folder


def _show(result: Result, folder: Path, *, json: bool) -> None:
    from simshuffle.studies.training import folder as folders

    if json:
        typer.echo(folders.as_json(result.tables))
    else:
        typer.echo((folder / "report.txt").read_text(encoding="utf-8"))
        drawn = ", ".join(str(path) for path in sorted(folder.glob("accuracy_*.png")))
        typer.echo(f"Tables: {folder}" + (f"\nFigures: {drawn}, and as .pdf" if drawn else ""))
    if result.meta["lost"]:
        say(f"{len(result.meta['lost'])} runs were lost; the same command tries them again.")
        raise typer.Exit(1)


@contextmanager
def _stoppable(folder: Path, runs: Sequence[Path]) -> Iterator[None]:
    """Say what is there of a study that is stopped or cannot be written, and end as interrupted or
    as a failure."""
    try:
        yield
    except (KeyboardInterrupt, OSError) as error:
        why = (
            f"{error.filename or folder}: {error.strerror or error}"
            if isinstance(error, OSError)
            else "Interrupted"
        )
        there = sum(run.exists() for run in runs)
        say(
            f"{why}. {there} of {len(runs)} runs are in {folder}; the same command goes on with"
            " them."
        )
        raise typer.Exit(1 if isinstance(error, OSError) else INTERRUPTED) from None


def _available(device: str) -> str:
    """The device that trains, when what trains is there."""
    try:
        import sklearn  # noqa: F401
        import torch
    except ImportError as error:
        problem = Problem(
            "", f"training needs {error.name}", "", "Install it: pip install 'simshuffle[train]'."
        )
        raise InputError(problem, "simshuffle train") from None
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = device.partition(":")
    if kind not in {"cpu", "cuda"} or (number and not number.isdigit()):
        raise InputError(
            Problem(
                "--device",
                "must be auto, cpu, cuda or cuda:N",
                repr(device),
                "Leave it out for auto.",
            ),
            "command line",
        )
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        found = f"{torch.cuda.device_count()} GPUs that torch can use"
        raise InputError(
            Problem(
                "--device", f"must be there; torch finds {found}", repr(device), "Train on the CPU."
            ),
            "command line",
        )
    return device


def _nothing(name: str) -> Path | None:
    return None


def _earlier(study: str) -> Callable[[str], Path | None]:
    """Where other results of a study of that name, below results/, have a run."""

    def find(name: str) -> Path | None:
        return next(iter(sorted(Path("results").glob(f"{study}-*/runs/{name}"))), None)

    return find


@contextmanager
def _progress(total: int) -> Iterator[Progress]:
    """A bar with the runs and an estimate of the time left; where there is no terminal, a line now
    and then."""
    import sys

    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Bars(
        *columns, TextColumn("{task.fields[left]}"), console=Console(stderr=True), transient=True
    ) as bars:
        task = bars.add_task(f"0 of {total} runs", total=1.0, left="")

        def report(standing: Standing) -> None:
            bars.update(
                task,
                completed=standing.share,
                description=f"{standing.done} of {standing.total} runs",
                left=_left(standing),
            )

        yield report


def _lines() -> Progress:
    begun = monotonic()
    due = [begun + FIRST_LINE]

    def report(standing: Standing) -> None:
        if monotonic() >= due[0] and standing.left_s is not None:
            due[0] = monotonic() + NEXT_LINE
            say(f"{standing.done} of {standing.total} runs, {_left(standing)}")

    return report


def _left(standing: Standing) -> str:
    if standing.left_s is None:
        return ""
    minutes, seconds = divmod(round(standing.left_s), 60)
    return f"about {minutes} min left" if minutes >= 5 else f"about {minutes}:{seconds:02d} left"
