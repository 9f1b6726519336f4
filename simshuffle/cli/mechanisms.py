"""Verbs that take an exchange apart: ablate, hiding."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simshuffle.cli.common import SetOption, progress_bars, say, values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd

    from simshuffle.scenario.scenario import Scenario

app = typer.Typer()

Place = Annotated[
    Path | None, typer.Option(help="Result folder; the default is results/VERB-NAME-FINGERPRINT.")
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print the tables as JSON on standard output, and nothing else."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is in the result folder.")]
Processes = Annotated[
    int | None, typer.Option(min=1, help="Simulations at once; the default is one on each core.")
]
ScenarioName = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="A scenario file, or a name below scenarios/.")
]


@app.command()
def ablate(
    scenario: ScenarioName,
    start: Annotated[
        str, typer.Option(metavar="EXCHANGE", help="The exchange to begin with, as in a scenario.")
    ] = "importance_exchange",
    end: Annotated[
        str,
        typer.Option(
            metavar="EXCHANGE", help="The exchange to end with; at the same exchange_fraction."
        ),
    ] = "importance_pair",
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
    seeds: Annotated[int, typer.Option(min=1, help="Seeds, from that of the scenario on.")] = 3,
    set_: SetOption = None,
    out: Place = None,
    json: AsJson = False,
    force: Force = False,
    processes: Processes = None,
) -> None:
    """Take the difference of two exchanges apart: which mechanism costs how much of the epoch of
    SCENARIO."""
    from simshuffle.studies.ablation import ablate as ablation

    loaded = _loaded(scenario, set_)
    asked = ablation.request(
        loaded, start, end, _pairs("--also", also), _pairs("--alone", alone), seeds
    )
    about = {"start": start, "end": end, "also": also or [], "alone": alone or [], "seeds": seeds}
    text = f"{asked.start.to_yaml()}---\n{asked.end.to_yaml()}"
    say(f"{asked.simulations} simulations.")
    _show(
        "ablation",
        loaded,
        about,
        text,
        lambda progress: ablation.ablate(asked, processes, progress),
        out,
        json,
        force,
    )


@app.command()
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
        float, typer.Option(min=0.0, max=1.0, help="Share of the epoch that may be added.")
    ] = 0.01,
    set_: SetOption = None,
    out: Place = None,
    json: AsJson = False,
    force: Force = False,
    processes: Processes = None,
) -> None:
    """Find the largest exchange fraction that costs the epoch of SCENARIO nothing, for each number
    of ranks, and what ends it."""
    from simshuffle.studies.ablation import hiding as search

    loaded = _loaded(scenario, set_)
    ways, sized = search.ways(loaded, way or []), search.scenarios(loaded, world_size or [])
    about = {"ways": ways, "tolerance": tolerance}
    text = "---\n".join(single.to_yaml() for single in sized)
    _show(
        "hiding",
        loaded,
        about,
        text,
        lambda progress: search.hiding(sized, ways, tolerance, processes, progress),
        out,
        json,
        force,
    )


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


def _show(
    kind: str,
    scenario: Scenario,
    asked: dict[str, Any],
    text: str,
    work: Callable[[Callable[[float], None] | None], dict[str, pd.DataFrame]],
    out: Path | None,
    json: bool,
    force: bool,
) -> None:
    """Find the result or make it, and print it."""
    from rich.console import Console

    from simshuffle.results.folders import check_place
    from simshuffle.studies.ablation import folder as folders
    from simshuffle.studies.ablation.text import parts

    mark = folders.fingerprint(kind, asked, text)
    verb = folders.VERBS[kind]
    folder = (
        out
        if out is not None
        else Path("results") / f"{verb}-{scenario.name.replace('/', '-')}-{mark}"
    )
    result = None if force else folders.existing(folder, mark)
    if result is None:
        check_place(folder, replace=force)  # before a long simulation, not after it
        with progress_bars() as bars:
            result = folders.outcome(
                kind, work((lambda share: bars(verb, share)) if bars else None), asked, text
            )
        result.save(folder, replace=force)
    else:
        say(f"{folder} already holds this result; nothing was simulated.")
    if json:
        typer.echo(result.as_json())
        return
    console = Console(width=None if sys.stdout.isatty() else 100)
    for part in parts(kind, result.tables):
        console.print(part, highlight=False, markup=False, soft_wrap=isinstance(part, str))
    name = folders.FIGURES[kind][0]
    typer.echo(f"Tables: {folder}\nFigure: {folder / f'{name}.png'} and {folder / f'{name}.pdf'}")
