"""The verb ``simshuffle study loader``, which chooses among three studies by its
options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simshuffle.studies.loader.options import LoaderOptions
from simshuffle.study.verb import Verb

if TYPE_CHECKING:
    from simshuffle.study.study import Request, Result, Study


def loader_request(options: LoaderOptions) -> tuple[Study[Any], Request[Any]]:
    """Return the study of orders, of settings (--tune) or of resumed loaders
    (--resume-at), and its request.

    Raises:
        InputError: an option is invalid, or is of another of the three studies.
    """
    # what computes; a list of verbs needs none of it
    from simshuffle.studies.loader import request, resume, study, tuning  # noqa: PLC0415

    if options.resume_at is not None:
        return resume.STUDY, resume.request(options)
    request.check_without_resuming(options)
    if options.tune:
        return tuning.STUDY, tuning.request(options)
    return study.STUDY, request.request(options)


def _name_failures(result: Result, options: LoaderOptions) -> str:
    """Return a sentence on the loaders that do not go on as if nothing had happened; ''
    if there are none, or if ``options`` name no loader.
    """
    from simshuffle.studies.loader.resume_tables import is_exact  # noqa: PLC0415 - as above

    if not options.loader:
        return ""
    rows = result.tables["resumes"].to_dict("records")
    wrong = dict.fromkeys(row["loader"] for row in rows if not is_exact(row))
    if not wrong:
        return ""
    return (
        f"These loaders do not resume as if nothing had happened: {', '.join(wrong)}."
    )


VERBS = (
    Verb(
        "study loader",
        LoaderOptions,
        loader_request,
        examples=(
            "simshuffle study loader",
            "simshuffle study loader --dataset imagenet50 --nodes 8 --cache '1 GB'",
            "simshuffle study loader quickstart --tune",
            "simshuffle study loader --resume-at middle --from 4x4 --to 3x4 --workers 4:2",
            "simshuffle study loader --check results/order.csv --nodes 2 --cache none",
        ),
        kinds={
            "loader": "simshuffle.studies.loader.study",
            "tuning": "simshuffle.studies.loader.tuning",
            "resume": "simshuffle.studies.loader.resume",
        },
        function="loader",
        noun="loader",
        done="counted",
        failed=_name_failures,
    ),
)
