"""Verbs on scenarios and results: run, check, plot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simshuffle.cli.common import ScenarioArgument, SetOption, load, progress_bars, say

if TYPE_CHECKING:
    from simshuffle.studies.simulation.result import Result

app = typer.Typer()


@app.command()
def run(
    scenario: ScenarioArgument,
    set_: SetOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Result folder; the default is results/NAME-FINGERPRINT.")
    ] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the epochs table as JSON on standard output, and nothing else."
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace what is in the result folder.")
    ] = False,
) -> None:
    """Simulate SCENARIO... and write tables and the breakdown figure into a result folder."""
    from simshuffle.api import resolved_yaml
    from simshuffle.api import run as run_scenarios
    from simshuffle.results.folders import check_place
    from simshuffle.studies.simulation.result import epochs_as_json, existing, fingerprint

    scenarios = load(scenario, set_)
    mark = fingerprint(resolved_yaml(scenarios))
    folder = (
        out
        if out is not None
        else Path("results") / f"{scenarios[0].name.replace('/', '-')}-{mark}"
    )
    result = None if force else existing(folder, mark)
    if result is None:
        check_place(folder, replace=force)  # before a long simulation, not after it
        with progress_bars() as progress:
            result = run_scenarios(scenarios, progress)
        result.save(folder, replace=force)
    else:
        say(f"{folder} already holds this result; nothing was simulated.")
    if json:
        typer.echo(epochs_as_json(result.epochs))
        return
    _print_result(result)
    typer.echo(
        f"Tables: {folder}\nFigure: {folder / 'breakdown.png'} and {folder / 'breakdown.pdf'}"
    )


@app.command()
def check(scenario: ScenarioArgument, set_: SetOption = None) -> None:
    """Print the resolved scenario with its units, and what follows from it. Simulates nothing."""
    from simshuffle.api import all_runs
    from simshuffle.plan.summary import derived
    from simshuffle.sim.simulate import check_size

    scenarios = load(scenario, set_)
    for single in all_runs(scenarios).values():
        check_size(single)
    for number, single in enumerate(scenarios):
        typer.echo(("---\n" if number else "") + single.to_yaml().rstrip())
    for name, single in all_runs(scenarios).items():
        typer.echo(f"# {name}")
        for key, value in derived(single).items():
            typer.echo(f"#   {key}: {value}")


@app.command()
def plot(
    folder: Annotated[Path, typer.Argument(help="A result folder.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Path of the figure without suffix; of a comparison or study, a folder. The default"
                " is in FOLDER."
            )
        ),
    ] = None,
) -> None:
    """Draw the figures of a result folder again, from its tables."""
    from simshuffle.results import report
    from simshuffle.results import style as plots
    from simshuffle.studies.ablation import folder as mechanisms
    from simshuffle.studies.congestion import folder as comparisons
    from simshuffle.studies.filtering import folder as data_optimised
    from simshuffle.studies.simulation.result import read
    from simshuffle.studies.time_to_accuracy import folder as joins
    from simshuffle.studies.training import folder as studies
    from simshuffle.studies.validation import figure as validation_figure
    from simshuffle.studies.validation import folder as validations

    if validations.holds(folder):
        stem = out if out is not None else folder / "validation"
        stem.parent.mkdir(parents=True, exist_ok=True)
        for path in plots.save(validation_figure.figure(validations.read(folder)), stem):
            typer.echo(f"Figure: {path}")
        return
    if comparisons.holds(folder):
        for path in comparisons.draw(
            comparisons.read(folder).tables, folder if out is None else out
        ):
            typer.echo(f"Figure: {path}")
        return
    if mechanisms.holds(folder):
        for path in mechanisms.draw(mechanisms.read(folder), folder if out is None else out):
            typer.echo(f"Figure: {path}")
        return
    if joins.holds(folder):
        for path in joins.draw(joins.read(folder), folder if out is None else out):
            typer.echo(f"Figure: {path}")
        return
    if studies.holds(folder):
        _plot_study(folder, out)
        return
    if data_optimised.holds(folder):
        for path in data_optimised.draw(
            data_optimised.read(folder).tables, folder if out is None else out
        ):
            typer.echo(f"Figure: {path}")
        return
    result = read(folder)
    figure = plots.breakdown_figure(
        result.breakdown, report.waiting(result.timeline), result.epochs
    )
    stem = out if out is not None else folder / "breakdown"
    stem.parent.mkdir(parents=True, exist_ok=True)
    for path in plots.save(figure, stem):
        typer.echo(f"Figure: {path}")


def _plot_study(folder: Path, out: Path | None) -> None:
    from simshuffle.studies.training import folder as studies

    result = studies.read(folder)
    if result.meta["state"] != "finished":
        there = int(result.tables.runs["status"].isin(["done", "failed"]).sum())
        say(
            f"This study is {result.meta['state']}: the figures show {there} of"
            f" {len(result.tables.runs)} runs. {studies.REPEAT}"
        )
    for path in studies.draw(result.tables, folder if out is None else out):
        typer.echo(f"Figure: {path}")


@app.command("list")
def list_() -> None:
    """List the scenarios, studies, topologies, models and data sets that come with simshuffle."""
    from simshuffle.spec.library import CATALOG, read_yaml, shipped_names

    for folder in ("scenarios", "studies", "topologies"):
        typer.echo(f"{folder}: {', '.join(shipped_names(folder))}")
    for kind in ("models", "datasets"):
        typer.echo(f"{kind}: {', '.join(sorted(read_yaml(CATALOG / f'{kind}.yaml')[0]))}")


def _print_result(result: Result) -> None:
    from rich.console import Console

    from simshuffle.studies.simulation.text import notes, tables

    console = Console(width=None if sys.stdout.isatty() else 100)
    for table in tables(result):
        console.print(table)
    for line in notes(result):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
