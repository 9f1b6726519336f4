"""The verb check: what bounds an epoch of a scenario."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simshuffle.cli.common import AsJson, Set, To, print_answer
from simshuffle.cli.help import command
from simshuffle.errors import SimshuffleWarning
from simshuffle.job.scenario.options import (
    INTERVAL,
    MEASURED,
    RANGES,
    ScenarioNames,
    scenarios_of,
    with_measured,
)
from simshuffle.study.options import Option

if TYPE_CHECKING:
    from simshuffle.job.scenario.scenario import Scenario

app = typer.Typer()

ALONE_NOTE = (
    "The bounds of a job hold for the job alone: they leave out what other jobs"
    " and background traffic take."
)

INTERVAL_NOTE = (
    "These intervals and orders are of the least times above; simshuffle run --interval has"
    " those of simulated epochs, with contention and waiting."
)


@command(
    app,
    "Describe",
    "simshuffle check quickstart",
    "simshuffle check mycluster.yaml --set world_size=512",
)
def check(
    scenario: ScenarioNames,
    *,
    set_: Set = None,
    full: Annotated[
        bool,
        Option("", "Print the resolved scenario as YAML, and what follows from it."),
    ] = False,
    json: AsJson = False,
    to: To = None,
    interval: Annotated[bool, INTERVAL] = False,
    ranges: Annotated[Mapping[str, tuple[float, float]] | None, RANGES] = None,
    measured: Annotated[Path | None, MEASURED] = None,
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
        scenarios = with_measured(scenarios_of(scenario, set_ or {}), measured)
    joint_runs = all_runs(scenarios)
    runs = separate_jobs(joint_runs)
    for run in runs.values():
        check_size(run)
        check_machine(run.cluster)
    for joint_run in joint_runs.values():
        check_faults(joint_run)
    if full:
        print_scenarios(scenarios, runs)
        return
    from simshuffle.job.verdict import tables, verdict

    rows = [verdict(run, name) for name, run in runs.items()]
    parts = tables(rows)
    if any(run.jobs or run.background for run in joint_runs.values()):
        parts.append(ALONE_NOTE)
    if interval or ranges or any(run.measured for run in runs.values()):
        from simshuffle.job.uncertainty.report import bound_facts
        from simshuffle.report import intervals
        from simshuffle.study.verdict import Verdict, join_sentences

        facts = bound_facts(runs, interval, ranges or {})
        rows = [
            {
                **row,
                "interval": facts["runs"][row["run"]],
                "hangs": facts["hangs"].get(row["run"], []),
                "odds": [odds for odds in facts["odds"] if odds["first"] == row["run"]],
                **{
                    name: facts[name] for name in ("measured", "worth") if name in facts
                },
            }
            for row in rows
        ]
        basis = intervals.describe_measured(facts)
        next_steps = [*intervals.describe_misfits(facts), intervals.measure_next(facts)]
        verdict_lines = Verdict(
            rests_on=join_sentences(basis),
            measure_next=join_sentences(next_steps) or f"{intervals.NOTHING_NARROWS}.",
        ).lines()
        parts += [INTERVAL_NOTE, *intervals.details(facts), *verdict_lines]
        parts += filter(None, [intervals.worth_table(facts)])
    rows, lines = advise_on_files(rows, scenarios, runs)
    print_answer(lambda: rows, lambda: [*parts, *lines], json=json, table_format=to)


def print_scenarios(scenarios: list[Scenario], runs: dict[str, Scenario]) -> None:
    """Print YAML that reads back as the scenarios, and comments on each run.

    Comments are the values that follow from the run, by key.
    """
    from simshuffle.job.derived_values import derive_values

    for index, scenario in enumerate(scenarios):
        typer.echo(("---\n" if index else "") + scenario.to_yaml().rstrip())
    for name, run in runs.items():
        typer.echo(f"# {name}")
        for key, value in derive_values(run).items():
            typer.echo(f"#   {key}: {value}")
