"""Verbs on what is described: check, list."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from simshuffle.cli.common import AsJson, Set, To, print_answer, print_parts
from simshuffle.cli.help import command
from simshuffle.errors import SimshuffleWarning
from simshuffle.job.scenario.options import INTERVAL, RANGES, ScenarioNames, scenarios_of
from simshuffle.study.options import Option

if TYPE_CHECKING:
    from simshuffle.job.scenario.scenario import Scenario

app = typer.Typer()

ALONE = "The bounds of a job are those of it alone: what other jobs and background take is in none."


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
    json: AsJson = False,
    to: To = None,
    interval: Annotated[bool, INTERVAL] = False,
    ranges: Annotated[Mapping[str, tuple[float, float]] | None, RANGES] = None,
) -> None:
    """Say what bounds an epoch, and which values look wrong.

    Simulates nothing."""
    from simshuffle.cli.advice import advise_on_files
    from simshuffle.job.plan.effort import check_size
    from simshuffle.job.plan.faults import check_faults
    from simshuffle.job.plan.jobs import separate_jobs
    from simshuffle.job.plan.wiring import check_machine
    from simshuffle.job.scenario.scenario import all_runs

    with warnings.catch_warnings():
        if not full:  # then they are among the verdicts
            warnings.simplefilter("ignore", SimshuffleWarning)
        scenarios = scenarios_of(scenario, set_ or {})
    given = all_runs(scenarios)
    runs = separate_jobs(given)
    for single in runs.values():
        check_size(single)
        check_machine(single.cluster)
    for each in given.values():
        check_faults(each)
    if full:
        _print_in_full(scenarios, runs)
        return
    from simshuffle.job.verdict import tables, verdict

    rows = [verdict(single, name) for name, single in runs.items()]
    parts = tables(rows)
    if any(single.jobs or single.background for single in given.values()):
        parts.append(ALONE)
    if interval or ranges:
        from simshuffle.job.uncertainty.report import interval_facts, ranges_of
        from simshuffle.report import intervals

        known = ranges_of(interval, ranges or {}, runs.values(), len(runs)) or {}
        found = interval_facts(
            {row["run"]: (runs[row["run"]], row["epoch_s"]) for row in rows}, known
        )
        rows = [
            {
                **row,
                "interval": found["runs"][row["run"]],
                "hangs": found["hangs"].get(row["run"], []),
                "odds": [odds for odds in found["odds"] if odds["first"] == row["run"]],
            }
            for row in rows
        ]
        parts += [*intervals.details(found), *intervals.measure_next(found)]
    rows, lines = advise_on_files(rows, scenarios, runs)
    print_answer(lambda: rows, lambda: [*parts, *lines], json=json, to=to)


def _print_in_full(scenarios: list[Scenario], runs: dict[str, Scenario]) -> None:
    """YAML that reads back as the scenarios, and what follows from each run as comments."""
    from simshuffle.job.derived_values import derive_values

    for number, single in enumerate(scenarios):
        typer.echo(("---\n" if number else "") + single.to_yaml().rstrip())
    for name, single in runs.items():
        typer.echo(f"# {name}")
        for key, value in derive_values(single).items():
            typer.echo(f"#   {key}: {value}")


@command(
    app,
    "Describe",
    "simshuffle list",
    "simshuffle list --to markdown",
    name="list",
    hidden=True,
)
def list_(to: To = None) -> None:
    """List scenarios, studies, machines, models, data sets, failures.

    Those that come with simshuffle."""
    from simshuffle.report.console import new_table
    from simshuffle.spec.library import catalog_names, shipped_names

    names = {folder: shipped_names(folder) for folder in ("scenarios", "studies", "topologies")}
    names |= {kind: catalog_names(kind) for kind in ("models", "datasets", "failures")}
    if to is None:
        for kind, listed in names.items():
            typer.echo(f"{kind}: {', '.join(listed)}")
        return
    table = new_table("What comes with simshuffle", ["kind", "name"])
    for kind, listed in names.items():
        for name in listed:
            table.add_row(kind, name)
    print_parts([table], to)
