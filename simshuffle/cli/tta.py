"""The verb that joins a training with the simulated time of its epochs: tta."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simshuffle.cli.common import (
    ScenarioName,
    SetOption,
    any_of,
    result_folders,
    say,
    study_names,
    values,
)
from simshuffle.cli.help import command
from simshuffle.cli.verb import (
    AsJson,
    Force,
    Options,
    Out,
    ProcessCount,
    Scheduler,
    To,
    carry_out,
    check_format,
    make,
)
from simshuffle.errors import InputError, Problem

app = typer.Typer()


@command(
    app,
    "Train",
    "simshuffle tta quick quickstart --scale trained",
    "simshuffle tta results/digits abci-imagenet1k --target 0.9 --scale ranks",
)
def tta(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="A result folder of 'simshuffle train', or a study, which is trained first.",
            autocompletion=any_of(result_folders, study_names),
        ),
    ],
    scenario: ScenarioName,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="trained, samples or ranks: what is scaled where M or N differ; see docs/tta.md.",
        ),
    ] = None,
    target: Annotated[
        list[float] | None,
        typer.Option(
            metavar="ACCURACY",
            help=(
                "Such as 0.9; may be given several times. Default: global less 1 and less 3 points."
            ),
        ),
    ] = None,
    world_size: Annotated[
        int | None,
        typer.Option(metavar="M", help="Of the study; the default is the M with most strategies."),
    ] = None,
    batch_norm: Annotated[
        str | None, typer.Option(metavar="KIND", help="Of the study: per_rank, sync or none.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Of the study, as in its tables.")
    ] = None,
    statistics: Annotated[
        str,
        typer.Option(metavar="NAME", help="Of the evaluation: own, rank0, pooled or recalibrated."),
    ] = "own",
    replayed_seeds: Annotated[
        int, typer.Option(metavar="K", help="Seeds of each setting whose plans are simulated.")
    ] = 1,
    global_source: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TIER",
            help=(
                "pfs, ssd or object_store: where global shuffle reads; several for each. Default:"
                " as the scenario, else pfs."
            ),
        ),
    ] = None,
    set_: SetOption = None,
    set_study: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY.PATH=VALUE",
            help="Set a value of the study that is trained; several times for several.",
        ),
    ] = None,
    out: Out = None,
    processes: ProcessCount = None,
    scheduler: Scheduler = None,
    json: AsJson = False,
    to: To = None,
    force: Force = False,
) -> None:
    """Join accuracy per epoch of STUDY with the simulated time per epoch of SCENARIO: what reaches
    which accuracy when."""
    from simshuffle.results.folders import check_place
    from simshuffle.scenario.scenario import load_scenario
    from simshuffle.studies.time_to_accuracy.join import request
    from simshuffle.studies.time_to_accuracy.study import STUDY

    # before a training, not after it
    check_format(json, to)
    if out is not None:
        check_place(out, replace=True, known=STUDY.names)
    asked = request(
        _trained(study, set_study or [], processes),
        load_scenario(scenario, values(set_ or [])),
        scale=scale,
        targets=target or [],
        world_size=world_size,
        batch_norm=batch_norm,
        variant=variant,
        statistics=statistics,
        replays=replayed_seeds,
        global_sources=global_source or [],
    )
    rule = str(asked.asked["rule"])
    say(f"{len(asked.values.cells)} simulations. {rule[0].upper()}{rule[1:]}.")
    carry_out(STUDY, asked, Options(out, json, force, processes, scheduler, to=to))


def _trained(study: str, assigned: list[str], processes: int | None) -> Path:
    """The result folder that is named; or that of the study that is named, trained to its end."""
    if Path(study).is_dir():
        if assigned:
            problem = Problem(
                "--set-study",
                "has no effect on a training that is done",
                ", ".join(assigned),
                "Name the study instead.",
            )
            raise InputError(problem, "command line")
        return Path(study)
    from simshuffle.cli.train import asked, available

    device = available("auto")
    at_once = processes or (None if device == "cpu" else 1)
    options = Options(processes=at_once, done="trained")
    kind, request = asked(study, values(assigned), device)
    if kind.kind != "training":
        rule = "must be a study of shuffling strategies"
        raise InputError(Problem("kind", rule, kind.kind, "Name another study."), study)
    return make(kind, request, options)[1]
