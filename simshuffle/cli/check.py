"""Verbs on what is described: check, list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from simshuffle.cli.common import ScenarioArgument, SetOption
from simshuffle.cli.help import command
from simshuffle.cli.show import To, check_format, print_json, print_parts
from simshuffle.scenario.options import assignments, scenarios_of

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
    scenario: ScenarioArgument,
    set_: SetOption = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Print the resolved scenario as YAML, and what follows from it."
        ),
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the verdicts as JSON, a row for each run.")
    ] = False,
    to: To = None,
) -> None:
    """Say what bounds an epoch, what it needs, which values look wrong.

    Simulates nothing."""
    from simshuffle.plan.effort import check_size
    from simshuffle.plan.wiring import check_machine
    from simshuffle.scenario.scenario import all_runs

    check_format(json, to)
    scenarios = scenarios_of(scenario, assignments(set_ or []))
    runs = all_runs(scenarios)
    for single in runs.values():
        check_size(single)
        check_machine(single.cluster)
    if full:
        _print_in_full(scenarios, runs)
        return
    from simshuffle.verdict import tables, verdict

    rows = [verdict(single, name) for name, single in runs.items()]
    if json:
        print_json(rows)
    else:
        print_parts(tables(rows), to)


def _print_in_full(scenarios: list[Scenario], runs: dict[str, Scenario]) -> None:
    """YAML that reads back as the scenarios, and what follows from each run as comments."""
    from simshuffle.verdict import derived

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
    from simshuffle.spec.library import CATALOG, read_yaml, shipped_names

    names = {folder: shipped_names(folder) for folder in ("scenarios", "studies", "topologies")}
    for kind in ("models", "datasets"):
        names[kind] = sorted(read_yaml(CATALOG / f"{kind}.yaml")[0])
    if to is None:
        for kind, listed in names.items():
            typer.echo(f"{kind}: {', '.join(listed)}")
        return
    from simshuffle.results.console import new_table

    table = new_table("What comes with simshuffle", ["kind", "name"])
    for kind, listed in names.items():
        for name in listed:
            table.add_row(kind, name)
    print_parts([table], to)
