"""The verb that compares data-loading policies."""

from __future__ import annotations

from typing import Annotated

import typer

from simshuffle.cli.common import SetOption, scenario_names, values
from simshuffle.cli.help import command
from simshuffle.cli.verb import AsJson, Force, Options, Out, ProcessCount, Scheduler, To, carry_out

app = typer.Typer()


@command(
    app,
    "Simulate",
    "simshuffle policies quickstart",
    "simshuffle policies nopfs --case imagenet22k --policy nopfs",
)
def policies(
    study: Annotated[
        str,
        typer.Argument(
            metavar="SCENARIO",
            help="A scenario or study: a file, a name below scenarios/, or nopfs.",
            autocompletion=scenario_names,
        ),
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A policy; may be given several times. Default: all."),
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A case of a study; may be given several times. Default: all."
        ),
    ] = None,
    set_: SetOption = None,
    out: Out = None,
    json: AsJson = False,
    to: To = None,
    force: Force = False,
    processes: ProcessCount = None,
    scheduler: Scheduler = None,
) -> None:
    """Compare data-loading policies: epoch time, ratio to the lower bound, bytes by source,
    coverage and storage."""
    from simshuffle.studies.policies.cases import load
    from simshuffle.studies.policies.comparison import request
    from simshuffle.studies.policies.study import STUDY

    loaded = load(study, values(set_ or [])).only(case or [])
    options = Options(out, json, force, processes, scheduler, "case", to=to)
    carry_out(STUDY, request(loaded, policy or []), options)
