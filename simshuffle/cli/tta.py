"""The verb that joins a training with the simulated time of its epochs: tta."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simshuffle.cli.common import SetOption, progress_bars, say, values
from simshuffle.errors import InputError, Problem

if TYPE_CHECKING:
    from simshuffle.studies.time_to_accuracy.folder import TimeToAccuracy
    from simshuffle.studies.time_to_accuracy.join import Prepared

app = typer.Typer()


@app.command()
def tta(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="A result folder of 'simshuffle train', or a study, which is trained first.",
        ),
    ],
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="A scenario file, or a name below scenarios/.")
    ],
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
                "pfs or ssd: where global shuffle reads; both for both. Default: as the scenario,"
                " else pfs."
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
    out: Annotated[
        Path | None,
        typer.Option(help="Result folder; the default is results/tta-STUDY-SCENARIO-FINGERPRINT."),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Simulations at once; the default is one on each core."),
    ] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the tables as JSON on standard output, and nothing else."
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace what is in the result folder.")
    ] = False,
) -> None:
    """Join accuracy per epoch of STUDY with the simulated time per epoch of SCENARIO: what reaches
    which accuracy when."""
    from simshuffle.scenario.scenario import load_scenario
    from simshuffle.studies.time_to_accuracy.join import prepare

    loaded = load_scenario(scenario, values(set_ or []))
    prepared = prepare(
        _trained(study, set_study or [], processes),
        loaded,
        scale=scale,
        targets=target or [],
        world_size=world_size,
        batch_norm=batch_norm,
        variant=variant,
        statistics=statistics,
        replays=replayed_seeds,
        global_sources=global_source or [],
    )
    names = f"{prepared.meta['study']}-{loaded.name}".replace("/", "-")
    folder = (
        out if out is not None else Path("results") / f"tta-{names}-{prepared.meta['fingerprint']}"
    )
    found = _found(prepared, folder, processes, force)
    if json:
        typer.echo(found.as_json())
        return
    typer.echo(found.report)
    drawn = ", ".join(str(path) for path in sorted(folder.glob("*.png")))
    typer.echo(f"Tables: {folder}\nFigures: {drawn}, and as .pdf")


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
    from simshuffle.cli.verb import Options, make

    device = available("auto")
    at_once = processes or (None if device == "cpu" else 1)
    options = Options(processes=at_once, done="trained")
    kind, request = asked(study, values(assigned), device)
    if kind.kind != "training":
        rule = "must be a study of shuffling strategies"
        raise InputError(Problem("kind", rule, kind.kind, "Name another study."), study)
    return make(kind, request, options)[1]


def _found(prepared: Prepared, folder: Path, processes: int | None, force: bool) -> TimeToAccuracy:
    """Read the result, or make it."""
    from simshuffle.results.folders import check_place
    from simshuffle.studies.time_to_accuracy import folder as folders
    from simshuffle.studies.time_to_accuracy.join import carry_out

    found = None if force else folders.existing(folder, prepared.meta["fingerprint"])
    if found is not None:
        say(f"{folder} already holds this result; nothing was simulated.")
        return found
    check_place(folder, replace=force)  # before long simulations, not after them
    say(
        f"{prepared.simulations} simulations."
        f" {prepared.meta['rule'][0].upper()}{prepared.meta['rule'][1:]}."
    )
    with progress_bars() as bars:
        found = carry_out(prepared, processes, (lambda share: bars("tta", share)) if bars else None)
    found.save(folder, replace=force)
    return found
