"""The verb that trains: studies of real trainings on emulated ranks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simshuffle.cli.common import SetOption, say, study_names, values
from simshuffle.cli.help import command
from simshuffle.cli.verb import AsJson, Force, Options, Out, ProcessCount, Scheduler, To, carry_out
from simshuffle.errors import InputError, Problem

if TYPE_CHECKING:
    from simshuffle.study.study import Request, Study

app = typer.Typer()


@command(
    app,
    "Train",
    "simshuffle train quick",
    "simshuffle train digits --set seeds=5 --device cpu --out digits",
)
def train(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="A study file, or a name below studies/.",
            autocompletion=study_names,
        ),
    ],
    set_: SetOption = None,
    out: Out = None,
    processes: ProcessCount = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="DEVICE",
            help="What trains: auto (a GPU if there is one), cpu, cuda, or cuda:N.",
        ),
    ] = "auto",
    scheduler: Scheduler = None,
    json: AsJson = False,
    to: To = None,
    force: Force = False,
) -> None:
    """Train every run of STUDY on emulated ranks and write tables, a report and figures. A stopped
    study goes on when called again."""
    device = available(device)
    at_once = processes or (None if device == "cpu" else 1)
    options = Options(out, json, force, at_once, scheduler, done="trained", to=to)
    with warnings_said():
        wanted = asked(study, values(set_ or []), device)
    carry_out(*wanted, options)


def asked(reference: str, given: dict[str, Any], device: str) -> tuple[Study[Any], Request[Any]]:
    """The study of that name or file, of whichever kind.

    Raises:
        InputError: there is no such study, or it cannot be trained.
    """
    from simshuffle.studies import study_of
    from simshuffle.studies.filtering.request import requested

    kind, request = requested(reference, given, device)
    return study_of(kind), request


@contextmanager
def warnings_said() -> Iterator[None]:
    """Warnings of simshuffle are told as everything else is; others stay what they are."""
    from simshuffle.errors import SimshuffleWarning

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default", SimshuffleWarning)
        yield
    for each in told:
        if issubclass(each.category, SimshuffleWarning):
            say(f"Warning: {each.message}")
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def available(device: str) -> str:
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
