"""Verbs on scenarios and results: run, sweep, check, plot, show, compare, verify, list."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from simshuffle.cli.common import (
    ResultFolder,
    ScenarioArgument,
    ScenarioName,
    SetOption,
    any_of,
    choice,
    load,
    result_folders,
    say,
    scenario_names,
    study_progress,
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
    print_json,
    print_parts,
)
from simshuffle.cli.verb import show as show_result

if TYPE_CHECKING:
    from simshuffle.results.ranks import Kept
    from simshuffle.results.report import Booking
    from simshuffle.scenario.scenario import Scenario

app = typer.Typer()

COMPARED = any_of(result_folders, scenario_names)
LabelsOption = Annotated[
    str | None,
    choice(
        "--labels",
        "cause",
        "paper",
        metavar="BOOKING",
        text="Waiting for other ranks by what it is for (cause, the default), or booked where the"
        " authors' timers do (paper).",
    ),
]


SeedsOption = Annotated[
    str, typer.Option("--seeds", metavar="N", help="Seeds of each run, from the scenario's own on.")
]


TimelineOption = Annotated[
    str | None,
    choice(
        "--timeline",
        "full",
        "ranks",
        "none",
        metavar="RANKS",
        text="Ranks of which the timeline is kept: full (all), ranks (a sample), none. The default"
        " is full, or ranks where that is more than some 3 million rows.",
    ),
]


@command(
    app,
    "Simulate",
    "simshuffle run quickstart",
    "simshuffle run mycluster.yaml --set epochs=2 --out first --to latex",
    "simshuffle run quickstart --seeds 5",
)
def run(
    scenario: ScenarioArgument,
    set_: SetOption = None,
    seeds: SeedsOption = "1",
    labels: LabelsOption = None,
    timeline: TimelineOption = None,
    out: Out = None,
    json: AsJson = False,
    to: To = None,
    force: Force = False,
    processes: ProcessCount = None,
    scheduler: Scheduler = None,
) -> None:
    """Simulate SCENARIO... and write tables and the breakdown figure into a result folder."""
    from simshuffle.studies.simulation.seed_count import read_seeds
    from simshuffle.studies.simulation.seeds import asked_of

    options = Options(out, json, force, processes, scheduler, to=to)
    count, booking = read_seeds(seeds), cast("Booking", labels or "cause")
    kept = cast("Kept | None", timeline)
    carry_out(*asked_of(load(scenario, set_), booking, count, kept), options)


@command(
    app,
    "Simulate",
    "simshuffle sweep quickstart --over world_size=16,32,64 --seeds 3",
    "simshuffle sweep quickstart --set 'sweep={}' --over world_size=8,16 --seeds 5",
)
def sweep(
    scenario: ScenarioName,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V1,V2,...",
            help="Values of a key; may be given several times: every value with every one.",
        ),
    ] = None,
    zip_: Annotated[
        bool,
        typer.Option(
            "--zip", help="Take the first values of all keys together, then the second ones, ..."
        ),
    ] = False,
    seeds: SeedsOption = "1",
    label: Annotated[
        str,
        typer.Option(
            metavar="TEXT", help="Names the runs, with axes in braces: 'Q={exchange_fraction}'."
        ),
    ] = "",
    measure: Annotated[
        str,
        typer.Option(
            metavar="NAME[/NAME]",
            help="What the figure shows: a column of sweep.parquet, or that over iterations or"
            " world_size, such as allreduce_exposed_s/iterations.",
        ),
    ] = "epoch_s",
    set_: SetOption = None,
    out: Out = None,
    json: AsJson = False,
    to: To = None,
    force: Force = False,
    processes: ProcessCount = None,
    scheduler: Scheduler = None,
) -> None:
    """Simulate SCENARIO over values of its keys and over seeds: one table, means, intervals, and a
    scaling figure."""
    from simshuffle.scenario.scenario import load_scenario
    from simshuffle.spec.overrides import read_axis
    from simshuffle.studies.simulation.seed_count import read_seeds
    from simshuffle.studies.simulation.sweep import STUDY, request

    axes, count = dict(read_axis(text) for text in over or ()), read_seeds(seeds)
    base = load_scenario(scenario, values(set_ or []))
    asked = request(base, axes, zip_, count, label, measure)
    carry_out(STUDY, asked, Options(out, json, force, processes, scheduler, to=to))


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
    """Say what bounds an epoch of each run, what it needs, and which values look wrong. Simulates
    nothing."""
    from simshuffle.plan.packets import check_size
    from simshuffle.plan.resources import check_machine
    from simshuffle.scenario.scenario import all_runs

    check_format(json, to)
    scenarios = load(scenario, set_)
    runs = all_runs(scenarios)
    for single in runs.values():
        check_size(single)
        check_machine(single.cluster)
    if full:
        _print_in_full(scenarios, runs)
        return
    from simshuffle.plan.verdict import tables, verdict

    rows = [verdict(single, name) for name, single in runs.items()]
    if json:
        print_json(rows)
    else:
        print_parts(tables(rows), to)


def _print_in_full(scenarios: list[Scenario], runs: dict[str, Scenario]) -> None:
    """YAML that reads back as the scenarios, and what follows from each run as comments."""
    from simshuffle.plan.summary import derived

    for number, single in enumerate(scenarios):
        typer.echo(("---\n" if number else "") + single.to_yaml().rstrip())
    for name, single in runs.items():
        typer.echo(f"# {name}")
        for key, value in derived(single).items():
            typer.echo(f"#   {key}: {value}")


@command(
    app,
    "Results",
    "simshuffle plot results/quickstart",
    "simshuffle plot results/quickstart --out figures/mine --labels paper",
)
def plot(
    folder: ResultFolder,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Path of the figure without suffix; of a study with several, a folder. The default"
            " is in FOLDER.",
        ),
    ] = None,
    labels: LabelsOption = None,
) -> None:
    """Draw the figures of a result folder again, from its tables.

    For a paper or slides, also of several results: simshuffle figure."""
    from simshuffle.studies import read_folder

    result = read_folder(folder)
    if labels is not None:
        result = replace(result, meta={**result.meta, "labels": labels})
    if result.meta.get("state") == "unfinished":
        say(f"{folder} is unfinished: the figures show what is there. Its command goes on with it.")
    if out is None:
        paths = result.draw(folder)
    elif result.study.one_figure:
        paths = result.draw(out.parent, out.name)
    else:
        paths = result.draw(out)
    for path in paths:
        typer.echo(f"Figure: {path}")


@command(
    app,
    "Results",
    "simshuffle show results/quickstart",
    "simshuffle show results/quickstart --to latex",
)
def show(
    folder: ResultFolder,
    json: AsJson = False,
    to: To = None,
) -> None:
    """Print the tables of a result folder again. Simulates nothing."""
    from simshuffle.studies import read_folder

    check_format(json, to)
    show_result(read_folder(folder), folder, json=json, to=to)


@command(
    app,
    "Results",
    "simshuffle compare results/before results/after",
    "simshuffle compare quickstart abci-imagenet1k --to markdown",
)
def compare(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A", help="A result folder, or a scenario.", autocompletion=COMPARED
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.", autocompletion=COMPARED)],
    json: AsJson = False,
    to: To = None,
) -> None:
    """Say what differs between A and B: in what was asked, and then in what came out. Simulates
    nothing."""
    from simshuffle.compare import compare as compared
    from simshuffle.compare import side

    check_format(json, to)
    found = compared(side(a), side(b))
    if json:
        print_json(found.as_json())
    else:
        print_parts(found.parts(), to)


@command(
    app,
    "Results",
    "simshuffle verify results/quickstart",
    "simshuffle verify results/quickstart --tolerance 1e-6 --processes 4",
)
def verify(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="A result folder.",
            autocompletion=result_folders,
        ),
    ],
    tolerance: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="By how much numbers may differ, as a share. The default is 0, or 1e-9 where"
            " another version made the result.",
        ),
    ] = None,
    processes: ProcessCount = None,
    json: AsJson = False,
) -> None:
    """Do again what is in a result folder, from what it holds, and say what differs: to the last
    bit, or within a tolerance if another version made it."""
    from simshuffle.cli.train import warnings_said
    from simshuffle.results.folders import meta_of
    from simshuffle.study.executors import Local
    from simshuffle.verify import verify as verified

    on_gpu = str(meta_of(folder).get("device", "cpu")).startswith("cuda")
    at_once = processes or (1 if on_gpu else None)
    with study_progress("run") as progress, warnings_said():
        found = verified(folder, Local(at_once), progress, tolerance)
    if json:
        print_json(found.as_json())
    else:
        typer.echo("\n".join(found.parts()))
    if not found.same:
        raise typer.Exit(1)


@command(app, "Describe", "simshuffle list", "simshuffle list --to markdown", name="list")
def list_(to: To = None) -> None:
    """List the scenarios, studies, topologies, models and data sets that come with simshuffle."""
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
