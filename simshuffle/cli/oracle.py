"""The verb that says which way to divide training is fastest, at what scale, within what memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simshuffle.cli.common import ScenarioName, SetOption, complain, values
from simshuffle.cli.help import command
from simshuffle.cli.verb import AsJson, Force, Options, Out, ProcessCount, Scheduler, To, carry_out

app = typer.Typer()
BAD_INPUT = 2

Strategies = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,...",
        help="Ways to divide training, such as data,data+spatial,pipeline:stages=4. Default: all"
        " that may work on as many GPUs.",
    ),
]
WorldSizes = Annotated[
    str | None,
    typer.Option(
        metavar="M,...",
        help="Numbers of GPUs. Default: powers of two, as far as machine and data set go.",
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory of a GPU that may be used. Default: what the accelerator's name says.",
    ),
]
Simulate = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME@M",
        help="A point whose step is simulated too, with all transfers on the cables at once; may be"
        " given several times.",
    ),
]
Measured = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Measured epochs to hold the predicted ones against: CSV with the columns strategy,"
        " world_size and epoch_s.",
    ),
]


@command(
    app,
    "Simulate",
    "simshuffle oracle paper/oracle",
    "simshuffle oracle paper/oracle --strategies data,spatial --world-sizes 4,64",
    "simshuffle oracle paper/oracle --budget-memory 8GiB --simulate data@64",
)
def oracle(
    scenario: ScenarioName,
    strategies: Strategies = None,
    world_sizes: WorldSizes = None,
    budget_memory: Budget = None,
    simulate: Simulate = None,
    measured: Measured = None,
    set_: SetOption = None,
    out: Out = None,
    json: AsJson = False,
    to: To = None,
    force: Force = False,
    processes: ProcessCount = None,
    scheduler: Scheduler = None,
) -> None:
    """Find which way to divide the training of SCENARIO is fastest on how many GPUs, and fits their
    memory."""
    from simshuffle.scenario.scenario import load_scenario
    from simshuffle.studies.oracle import given
    from simshuffle.studies.oracle.asking import Asked, request
    from simshuffle.studies.oracle.recommend import nothing_fits
    from simshuffle.studies.oracle.study import STUDY

    asked = Asked(
        () if strategies is None else given.listed(strategies),
        () if world_sizes is None else given.sizes(world_sizes),
        budget_memory,
        given.at(simulate or []),
        given.measured_epochs(measured),
    )
    wanted = request(load_scenario(scenario, values(set_ or [])), asked)
    options = Options(out, json, force, processes, scheduler, "cell", done="computed", to=to)
    result = carry_out(STUDY, wanted, options)
    if problem := nothing_fits(result.tables["points"], result.meta["says"].get("budget_nbytes")):
        complain(str(problem))
        raise typer.Exit(BAD_INPUT)
