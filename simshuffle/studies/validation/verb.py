"""What ``simshuffle study validate`` is asked: which rows that were measured elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simshuffle.study.options import CellOptions, Option, words
from simshuffle.study.verb import Verb

if TYPE_CHECKING:
    from simshuffle.study.study import Request, Study


@dataclass(frozen=True, kw_only=True)
class ValidationOptions(CellOptions):
    """Predict what was measured on real machines, and print the errors.

    Fitted and predicted rows apart."""

    only: Annotated[
        tuple[str, ...],
        Option(
            "SET",
            "A set of rows. Default: all.",
            many=True,
            complete=words(place="simshuffle.studies.validation.study:shipped_sets"),
        ),
    ] = ()
    folder: Annotated[
        Path | None,
        Option(
            "FOLDER",
            "Folder of CSV files; the default is what comes with simshuffle.",
            flag="--from",
        ),
    ] = None
    out: Annotated[
        Path | None,
        Option("FOLDER", "Folder for the table and the figure; nothing is written without it."),
    ] = None


def request(options: ValidationOptions) -> tuple[Study[Any], Request[Any]]:
    """A prediction of each row."""
    from simshuffle.studies.validation import study  # noqa: PLC0415 - what computes

    return study.STUDY, study.request(options.only, options.folder)


VERBS = (
    Verb(
        "study validate",
        ValidationOptions,
        request,
        examples=(
            "simshuffle study validate",
            "simshuffle study validate --only testbed --out validated --to markdown",
        ),
        kinds={"validation": "simshuffle.studies.validation.study"},
        function="validate",
        noun="prediction",
        width=120,
        kept=False,
    ),
)
