"""The options of ``simshuffle train``: a study of shuffling strategies, or of
filtering.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from simshuffle.errors import refuse
from simshuffle.job.scenario.options import Set, study_names
from simshuffle.study.options import COMMAND_LINE, Argument, CellOptions, Option, words
from simshuffle.study.verb import Verb

if TYPE_CHECKING:
    from simshuffle.study.study import Request, Study

KIND = "training"


@dataclass(frozen=True, kw_only=True)
class TrainOptions(CellOptions):
    """Train every run of a study on emulated ranks.

    Writes tables, a report and figures. A stopped study goes on when called again."""

    study: Annotated[
        str,
        Argument(
            "STUDY", "A study file, or a name below studies/.", complete=study_names
        ),
    ]
    device: Annotated[
        str,
        Option(
            "DEVICE",
            "Device that trains: auto (a GPU if there is one), cpu, cuda, or cuda:N.",
            complete=words("auto", "cpu", "cuda"),
        ),
    ] = "auto"
    set: Set = field(default_factory=dict)


def request(options: TrainOptions) -> tuple[Study[Any], Request[Any]]:
    """Build the request: a training for each run and seed, of either kind of study.

    Returns the study and the request; on a GPU one cell runs at a time.

    Raises:
        InputError: torch, the device, the study or its data are missing or do not fit.
    """
    from simshuffle.study.registry import study_of  # noqa: PLC0415 - what computes

    device = check_device(options.device)
    from simshuffle.extensions.learning.filtering.request import request_by_kind  # noqa: PLC0415 - torch

    kind, study_request = request_by_kind(options.study, options.set, device)
    return study_of(kind), replace(study_request, one_device=device != "cpu")


def check_device(device: str) -> str:
    """Return the device that trains: 'cpu', 'cuda' or 'cuda:N'.

    'auto' is 'cuda' if torch can use a GPU, else 'cpu'.

    Raises:
        InputError: torch or scikit-learn are missing, or the device is; ``device`` has
            another form.
    """
    try:
        import sklearn  # noqa: F401, PLC0415 - extras
        import torch  # noqa: PLC0415
    except ImportError as error:
        remedy = "Run pip install 'simshuffle[train]'."
        refuse("", f"training needs {error.name}", "", remedy, "simshuffle train")
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, colon, index = device.partition(":")
    rule = ""
    remedy = "Train on the CPU."
    has_index = kind == "cuda" and index.isdigit()
    if kind not in {"cpu", "cuda"} or (colon and not has_index):
        rule = "must be auto, cpu, cuda or cuda:N"
        remedy = "Leave --device out for auto."
    elif kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        rule = (
            f"must exist; torch finds {torch.cuda.device_count()} GPUs that it can use"
        )
    if rule:
        refuse("--device", rule, repr(device), remedy, COMMAND_LINE)
    return device


VERBS = (
    Verb(
        "train",
        TrainOptions,
        request,
        examples=(
            "simshuffle train quick",
            "simshuffle train digits --set seeds=5 --device cpu --out digits",
        ),
        kinds={
            KIND: "simshuffle.studies.training.study",
            "data_optimised": "simshuffle.extensions.learning.filtering.study",
        },
        function="train_study",
        done="trained",
    ),
)
