"""Verbs on what is described: check, list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from simshuffle.cli.common import Set
from simshuffle.cli.help import command
from simshuffle.cli.show import To, check_format, print_found, print_parts
from simshuffle.studies.fields import ScenarioNames, scenarios_of
from simshuffle.study.options import Option

if TYPE_CHECKING:
    from simshuffle.scenario.scenario import Scenario

app = typer.Typer()


@command(
    app,
    "Describe",
    "simshuffle check quickstart",
    "simshuffle check mycluster.yaml --set world_size=512",
)
def check(
    scenario: ScenarioNames,
    set_: Set = None,
    full: Annotated[
        bool, Option("", "Print the resolved scenario as YAML, and what follows from it.")
    ] = False,
    json: Annotated[bool, Option("", "Print the verdicts as JSON, a row for each run.")] = False,
    to: To = None,
) -> None:
    """Say what bounds an epoch, what it needs, which values look wrong.

    Simulates nothing."""
    from simshuffle.plan.packets import check_size
    from simshuffle.plan.wiring import check_machine
    from simshuffle.scenario.scenario import all_runs

    check_format(json, to)
    scenarios = scenarios_of(scenario, set_ or {})
    runs = all_runs(scenarios)
    for single in runs.values():
        check_size(single)
        check_machine(single.cluster)
    if full:
        _print_in_full(scenarios, runs)
        return
    from simshuffle.plan.verdict import tables, verdict

    rows = [verdict(single, name) for name, single in runs.items()]
    print_found(lambda: rows, lambda: tables(rows), json=json, to=to)


def _print_in_full(scenarios: list[Scenario], runs: dict[str, Scenario]) -> None:
    """YAML that reads back as the scenarios, and what follows from each run as comments."""
    from simshuffle.plan.summary import derived

    for number, single in enumerate(scenarios):
        typer.echo(("---\n" if number else "") + single.to_yaml().rstrip())
    for name, single in runs.items():
        typer.echo(f"# {name}")
        for key, value in derived(single).items():
            typer.echo(f"#   {key}: {value}")


@command(app, "Describe", "simshuffle list", "simshuffle list --to markdown", name="list")
def list_(to: To = None) -> None:
    """List the scenarios, studies, machines, models and data sets.

    Those that come with simshuffle."""
    from simshuffle.results.console import new_table
    from simshuffle.spec.library import catalog_names, shipped_names

    names = {folder: shipped_names(folder) for folder in ("scenarios", "studies", "topologies")}
    names |= {kind: catalog_names(kind) for kind in ("models", "datasets")}
    if to is None:
        for kind, listed in names.items():
            typer.echo(f"{kind}: {', '.join(listed)}")
        return
    table = new_table("What comes with simshuffle", ["kind", "name"])
    for kind, listed in names.items():
        for name in listed:
            table.add_row(kind, name)
    print_parts([table], to)
