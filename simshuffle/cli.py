"""The command line: verbs only. The one place that prints or exits; a verb imports what it needs when it is called."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simshuffle.errors import InputError, Problem, SimshuffleError
from simshuffle.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simshuffle.congestion.folder import Comparison
    from simshuffle.results import Result
    from simshuffle.scenario import Scenario

# what typer raises for a wrong command line, whichever package it has it from
_UsageError: Any = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="simshuffle",
    help="Simulate what shuffling the data costs in distributed deep learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

INTERRUPTED = 130

SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY.PATH=VALUE", help="Set a value of the scenario; may be given several times.")
]
ScenarioArgument = Annotated[list[str], typer.Argument(metavar="SCENARIO...", help="Scenario files, or names below scenarios/.")]


@app.command()
def run(
    scenario: ScenarioArgument,
    set_: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="Result folder; the default is results/NAME-FINGERPRINT.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the epochs table as JSON on standard output, and nothing else.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what is in the result folder.")] = False,
) -> None:
    """Simulate SCENARIO... and write tables and the breakdown figure into a result folder."""
    from simshuffle.experiment import resolved_yaml
    from simshuffle.experiment import run as run_scenarios
    from simshuffle.results import check_place, epochs_as_json, existing, fingerprint

    scenarios = _load(scenario, set_)
    mark = fingerprint(resolved_yaml(scenarios))
    folder = out if out is not None else Path("results") / f"{scenarios[0].name.replace('/', '-')}-{mark}"
    result = None if force else existing(folder, mark)
    if result is None:
        check_place(folder, replace=force)  # before a long simulation, not after it
        with _progress() as progress:
            result = run_scenarios(scenarios, progress)
        result.save(folder, replace=force)
    else:
        _say(f"{folder} already holds this result; nothing was simulated.")
    if json:
        typer.echo(epochs_as_json(result.epochs))
        return
    _print_result(result)
    typer.echo(f"Tables: {folder}\nFigure: {folder / 'breakdown.png'} and {folder / 'breakdown.pdf'}")


@app.command()
def check(scenario: ScenarioArgument, set_: SetOption = None) -> None:
    """Print the resolved scenario with its units, and what follows from it. Simulates nothing."""
    from simshuffle.derived import derived
    from simshuffle.experiment import all_runs
    from simshuffle.sim.simulate import check_size

    scenarios = _load(scenario, set_)
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
        Path | None, typer.Option(help="Path of the figure without suffix; of a comparison, a folder. The default is in FOLDER.")
    ] = None,
) -> None:
    """Draw the figures of a result folder again, from its tables."""
    from simshuffle import plots, report
    from simshuffle.congestion import folder as comparisons
    from simshuffle.results import read

    if comparisons.holds(folder):
        for path in comparisons.draw(comparisons.read(folder).tables, folder if out is None else out):
            typer.echo(f"Figure: {path}")
        return
    result = read(folder)
    figure = plots.breakdown_figure(result.breakdown, report.waiting(result.timeline), result.epochs)
    stem = out if out is not None else folder / "breakdown"
    stem.parent.mkdir(parents=True, exist_ok=True)
    for path in plots.save(figure, stem):
        typer.echo(f"Figure: {path}")


@app.command()
def replay(
    case: Annotated[Path, typer.Argument(metavar="CASE", help="A JSON file with links and flows, compressed with gzip or not.")],
    network: Annotated[str, typer.Option(metavar="MODEL", help="The network model: analytic, fluid or packet.")] = "fluid",
    tolerance: Annotated[
        str | None, typer.Option(metavar="SHARE", help="fluid: error allowed for less work, from 0 (exact) to below 1.")
    ] = None,
    mtu: Annotated[str | None, typer.Option(metavar="SIZE", help="packet: bytes of a packet, such as '4096 B'.")] = None,
    port_buffer: Annotated[str | None, typer.Option(metavar="SIZE", help="packet: buffer of a port, such as '64 KiB'.")] = None,
    out: Annotated[Path | None, typer.Option(help="CSV file (.csv or .csv.gz); the default is standard output.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Put the ends that CASE expects, and the errors, beside each end.")] = False,
) -> None:
    """Say when the flows of CASE end: a CSV table; a summary on standard error."""
    from simshuffle.network.case import read_case
    from simshuffle.network.files import check_target, whole_file
    from simshuffle.network.replay import csv_rows, network_model, summary
    from simshuffle.network.replay import replay as replay_case

    model = network_model(network, {"tolerance": tolerance, "mtu": mtu, "port_buffer": port_buffer})
    if out is not None:
        check_target(out, case)
    given = read_case(case)
    if compare and given.expected is None:
        raise InputError(Problem("--compare", "needs a case that says when its flows end", "no flows.end", "Leave it out."), str(case))
    with _progress() as progress:
        result = replay_case(given, model, (lambda share: progress("replay", share)) if progress else None)
    if out is None:
        sys.stdout.writelines(csv_rows(result, compare=compare))
        sys.stdout.flush()  # an error comes here, and not at the end of the process
    else:
        with whole_file(out) as file:
            file.writelines(csv_rows(result, compare=compare))
    for line in summary(result):
        _say(line)


@app.command()
def congestion(
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="A scenario file, or a name below scenarios/.")],
    pattern: Annotated[list[str] | None, typer.Option(metavar="NAME", help="A pattern; may be given several times. Default: all.")] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", help="analytic, fluid or packet; several times for several. Default: fluid, packet."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds for analytic and fluid.")] = 5,
    packet_seeds: Annotated[int, typer.Option(min=1, help="Seeds for packet, of those for the others.")] = 3,
    packets: Annotated[int, typer.Option(min=1, help="Packets in one run of packet; what is more is left out.")] = 2_000_000,
    world_size: Annotated[
        list[int] | None, typer.Option(metavar="M", help="Ranks; may be given several times. Default: the sweep's, or the scenario's.")
    ] = None,
    set_: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="Result folder; the default is results/congestion-NAME-FINGERPRINT.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the tables as JSON on standard output, and nothing else.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what is in the result folder.")] = False,
) -> None:
    """Compare all-to-all with pairwise exchange on the bytes of SCENARIO: times, what decides, and a verdict."""
    from simshuffle.congestion import folder as folders
    from simshuffle.congestion import request
    from simshuffle.congestion.compare import Settings
    from simshuffle.results import check_place

    settings = request.chosen(Settings(seeds=seeds, packet_seeds=packet_seeds, packets=packets), pattern or [], network or [])
    scenarios = request.scenarios(scenario, _values(set_ or []), world_size or [])
    mark = request.fingerprint(scenarios, settings)
    folder = out if out is not None else Path("results") / f"congestion-{scenarios[0].name.replace('/', '-')}-{mark}"
    result = None if force else folders.existing(folder, mark)
    if result is None:
        check_place(folder, replace=force)  # before a long comparison, not after it
        with _progress() as progress:
            result = request.comparison(scenarios, settings, request.with_estimate(progress, _say, monotonic))
        result.save(folder, replace=force)
    else:
        _say(f"{folder} already holds this comparison; nothing was computed.")
    if json:
        typer.echo(folders.as_json(result.tables))
        return
    _print_comparison(result)
    typer.echo(f"Tables: {folder}\nFigures: {folder / 'times.png'}, {folder / 'heat.png'}, and both as .pdf")


@app.command("list")
def list_() -> None:
    """List the scenarios, topologies, models and data sets that come with simshuffle."""
    from simshuffle.library import CATALOG, read_yaml, shipped_names

    for folder in ("scenarios", "topologies"):
        typer.echo(f"{folder}: {', '.join(shipped_names(folder))}")
    for kind in ("models", "datasets"):
        typer.echo(f"{kind}: {', '.join(sorted(read_yaml(CATALOG / f'{kind}.yaml')[0]))}")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"simshuffle {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


def _load(references: Sequence[str], assignments: Sequence[str] | None) -> list[Scenario]:
    """The scenarios of all files; every problem of every file in one error."""
    from simshuffle.scenario import load_scenarios

    values = _values(assignments or [])
    scenarios: list[Scenario] = []
    failures: list[InputError] = []
    for reference in references:
        try:
            loaded = load_scenarios(reference, values)
            for single in loaded:
                single.runs()
            scenarios += loaded
        except InputError as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise _Several(failures)
    return scenarios


class _Several(InputError):
    """The errors of several files, below one another."""

    def __init__(self, errors: list[InputError]) -> None:
        self.errors = errors
        super().__init__([problem for error in errors for problem in error.problems])

    def _text(self) -> str:
        return "\n".join(str(error) for error in self.errors)


def _values(assignments: Sequence[str]) -> dict[str, Any]:
    """``KEY.PATH=VALUE`` texts as a mapping; values are read as YAML."""
    from simshuffle.library import read_value

    values: dict[str, Any] = {}
    problems = []
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            problems.append(Problem("--set", "is written KEY.PATH=VALUE", repr(text), "For example --set world_size=512."))
            continue
        try:
            values[key.strip()] = read_value(value)
        except ValueError:
            problems.append(Problem(f"--set {key}", "the value must be plain YAML", repr(value), "Quote it."))
    if problems:
        raise InputError(problems, "command line")
    return values


@contextmanager
def _progress() -> Iterator[Callable[[str, float], None] | None]:
    """A progress bar with an estimate of the time left; none where there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(name: str, share: float) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=1.0)
            bars.update(tasks[name], completed=share)

        yield report


def _print_result(result: Result) -> None:
    from rich.console import Console

    from simshuffle.summary import notes, tables

    console = Console(width=None if sys.stdout.isatty() else 100)
    for table in tables(result):
        console.print(table)
    for line in notes(result):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _print_comparison(result: Comparison) -> None:
    from rich.console import Console

    from simshuffle.congestion import text

    console = Console(width=None if sys.stdout.isatty() else 100)
    for part in text.parts(result.tables, result.meta["message_latency_s"]):
        console.print(part, highlight=False, markup=False, soft_wrap=isinstance(part, str))


def _say(text: str) -> None:
    typer.echo(text, err=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0, 1 a failure, 2 bad input, 130 interrupted."""
    try:
        status = app(args=list(arguments) if arguments is not None else None, standalone_mode=False)
    except InputError as error:
        _say(str(error))
        return 2
    except SimshuffleError as error:
        _say(str(error))
        return 1
    except typer.Exit as stop:
        return int(stop.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        _say(f"{name}{error.strerror or error}. Nothing was written; free some space or choose another --out.")
        return 1
    except _UsageError as error:
        error.show()
        return int(error.exit_code)
    if status == INTERRUPTED:
        _say("Interrupted; nothing was written.")
    return status if isinstance(status, int) else 0


def entry_point() -> None:
    """The ``simshuffle`` command."""
    sys.exit(main())
