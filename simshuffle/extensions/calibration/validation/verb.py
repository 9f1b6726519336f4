"""The verb ``simshuffle study validate``, and its options: which measured rows to
predict.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simshuffle.errors import refuse
from simshuffle.study.options import COMMAND_LINE, CellOptions, Option, words
from simshuffle.study.verb import Verb

if TYPE_CHECKING:
    from simshuffle.study.study import Request, Result, Study


@dataclass(frozen=True, kw_only=True)
class ValidationOptions(CellOptions):
    """Predict what was measured on real machines, and print the errors.

    Fitted and predicted rows apart."""

    only: Annotated[
        tuple[str, ...],
        Option(
            "SET",
            "Validate this set of rows. Default: all sets.",
            many=True,
            complete=words(
                place="simshuffle.extensions.calibration.validation.study:shipped_sets"
            ),
        ),
    ] = ()
    folder: Annotated[
        Path | None,
        Option(
            "FOLDER",
            "Folder of CSV files of measured values. Default: the files that come with simshuffle.",
            flag="--from",
        ),
    ] = None
    seal: Annotated[
        Path | None,
        Option(
            "FILE",
            "Also write the predictions, their intervals, versions, date and digest to this file,"
            " without measured values. The rows may have no measured value yet.",
        ),
    ] = None
    open: Annotated[
        Path | None,
        Option(
            "FILE",
            "Compare the predictions that were sealed in this file, in place of new ones, with the"
            " measured values in the CSV files.",
        ),
    ] = None
    entry: Annotated[
        tuple[Path, ...],
        Option(
            "FILE",
            "A CSV file of what another program predicts: by, set, case, quantity, predicted,"
            " interval_low, interval_high. Its predictions are scored beside simshuffle on the"
            " same rows.",
            many=True,
        ),
    ] = ()
    out: Annotated[
        Path | None,
        Option(
            "FOLDER",
            "Folder for the table and the figure; nothing is written without it.",
        ),
    ] = None


def request(options: ValidationOptions) -> tuple[Study[Any], Request[Any]]:
    """Return the study and the request to predict each row, or to compare sealed
    predictions.

    The file for sealed predictions is checked before they are computed.

    Raises:
        InputError: --seal and --open are both given, the file of --seal cannot be
            written, or a file or row is not valid.
    """
    from simshuffle.extensions.calibration.validation import sealed, study  # noqa: PLC0415 - what computes

    if options.seal is not None:
        if options.open is not None:
            rule = "cannot be given together with --open"
            remedy = "Leave one of them out."
            refuse("--seal", rule, str(options.seal), remedy, COMMAND_LINE)
        sealed.check_path(options.seal, replace=options.force)
    validation = study.request(
        options.only,
        options.folder,
        seal=options.seal is not None,
        sealed_file=options.open,
        entry=options.entry,
    )
    return study.STUDY if options.open is None else study.OPENED, validation


def write_seal(result: Result, options: ValidationOptions) -> Iterable[str]:
    """Seal the predictions if the options ask for it; yield the path and the digest."""
    if options.seal is None:
        return
    from simshuffle.extensions.calibration.validation import sealed  # noqa: PLC0415 - what computes

    code = result.meta["code"]
    digest = sealed.seal_predictions(
        options.seal, result.tables["validation"], code, replace=options.force
    )
    yield f"Sealed: {options.seal}, sha-256 {digest}"


VERBS = (
    Verb(
        "study validate",
        ValidationOptions,
        request,
        examples=(
            "simshuffle study validate",
            "simshuffle study validate --only testbed --out validated --to markdown",
            "simshuffle study validate --from mine --seal sealed.json",
            "simshuffle study validate --from mine --open sealed.json",
        ),
        kinds={
            "validation": "simshuffle.extensions.calibration.validation.study",
            "validation_opened": "simshuffle.extensions.calibration.validation.study:OPENED",
        },
        function="validate",
        noun="prediction",
        width=120,
        kept=False,
        also=write_seal,
    ),
)
