"""Verbs that take an exchange apart: ablate, hiding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from simshuffle.cli.common import ScenarioName, SetOption, say, values
from simshuffle.cli.help import command
from simshuffle.cli.verb import AsJson, Force, Options, Out, ProcessCount, Scheduler, To, carry_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simshuffle.scenario.scenario import Scenario

app = typer.Typer()


@command(
    app,
    "Simulate",
    "simshuffle ablate quickstart --set world_size=8",
    "simshuffle ablate quickstart --also payload=encoded --out apart",
)
def ablate(
    scenario: ScenarioName,
    start: Annotated[
        str, typer.Option(metavar="EXCHANGE", help="The exchange to begin with, as in a scenario.")
    ] = "importance_exchange:schedule=authors",
    end: Annotated[
        str,
        typer.Option(
            metavar="EXCHANGE", help="The exchange to end with; at the same exchange_fraction."
        ),
    ] = "importance_pair:schedule=authors",
    also: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A further switch, such as payload=encoded; may be given several times.",
        ),
    ] = None,
    alone: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help=(
                "A value that is set alone, at the start and at the end; may be given several"
                " times."
            ),
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Seeds, from that of the scenario on.")
    ] = 3,
    set_: SetOption = None,
    out: Out = None,
    json: AsJson = False,
    to: To = None,
    force: Force = False,
    processes: ProcessCount = None,
    scheduler: Scheduler = None,
) -> None:
    """Take the difference of two exchanges apart: which mechanism costs how much of the epoch of
    SCENARIO."""
    from simshuffle.studies.ablation.ablate import request
    from simshuffle.studies.ablation.study import STUDY

    switched, single = _pairs("--also", also), _pairs("--alone", alone)
    asked = request(_loaded(scenario, set_), start, end, switched, single, seeds)
    say(f"{asked.values.simulations} simulations.")
    carry_out(STUDY, asked, Options(out, json, force, processes, scheduler, "simulation", to=to))


@command(
    app,
    "Simulate",
    "simshuffle hiding quickstart --world-size 64",
    "simshuffle hiding quickstart --way authors --way wire --tolerance 0.02",
)
def hiding(
    scenario: ScenarioName,
    world_size: Annotated[
        list[int] | None,
        typer.Option(
            metavar="M",
            help="Ranks; may be given several times. Default: 64 to 4096, as far as they fit.",
        ),
    ] = None,
    way: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=(
                "authors, pair, encoded, wire, or own; several times for several. Default: the"
                " first four."
            ),
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, metavar="SHARE", help="Share of the epoch that may be added."
        ),
    ] = 0.01,
    set_: SetOption = None,
    out: Out = None,
    json: AsJson = False,
    to: To = None,
    force: Force = False,
    processes: ProcessCount = None,
    scheduler: Scheduler = None,
) -> None:
    """Find the largest exchange fraction that costs the epoch of SCENARIO nothing, for each number
    of ranks, and what ends it."""
    from simshuffle.studies.hidden_fraction.hiding import request
    from simshuffle.studies.hidden_fraction.study import STUDY

    asked = request(_loaded(scenario, set_), world_size or [], way or [], tolerance)
    carry_out(STUDY, asked, Options(out, json, force, processes, scheduler, "search", to=to))


def _loaded(reference: str, assignments: Sequence[str] | None) -> Scenario:
    from simshuffle.scenario.scenario import load_scenario

    return load_scenario(reference, values(assignments or [])).model_copy(update={"sweep": {}})


def _pairs(option: str, texts: Sequence[str] | None) -> list[tuple[str, Any]]:
    """``KEY=VALUE`` texts as keys and values, which are read as YAML."""
    from simshuffle.errors import InputError, Problem
    from simshuffle.spec.library import read_value

    out, problems = [], []
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            remedy = f"For example {option} payload=encoded."
            problems.append(Problem(option, "is written KEY=VALUE", repr(text), remedy))
            continue
        try:
            out.append((key.strip(), read_value(value, f"{option} {key}")))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems, "command line")
    return out
