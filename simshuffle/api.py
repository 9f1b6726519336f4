"""START HERE. run(scenario): every run of a scenario's sweep is planned, simulated, and
reported.

A scenario names a cluster and a workload; every epoch is planned as traffic (`plan`);
the plan is simulated into a timeline (`sim`); the tables and the figure read only the
timeline (`results`). Every run is a cell of a study (`study`), so that runs go side by
side, and a stopped study goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from simshuffle.job.scenario.scenario import Scenario
from simshuffle.report.kept_phases import KeptRanks
from simshuffle.studies import comparison
from simshuffle.studies.comparison import Comparison
from simshuffle.studies.simulation.study import SimulationResult, request
from simshuffle.studies.simulation.verb import RunOptions
from simshuffle.study import engine
from simshuffle.study.registry import read_folder
from simshuffle.study.standing import Standing
from simshuffle.study.study import Result

Comparable = str | Path | Result | Scenario
Progress = Callable[[str, float], None]
"""Called with the name of the run and the share of it that is done, from 0 to 1."""


def run(
    scenario: Scenario | str | Path | Sequence[Scenario | str | Path],
    progress: Progress | None = None,
    *,
    seeds: int = 1,
    timeline: KeptRanks | None = None,
    interval: bool = False,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    measured: str | Path | None = None,
    force_size: bool = False,
) -> SimulationResult:
    """Simulate one or more scenarios, each with all runs of its sweep, in this process.

    Args:
        scenario: one or more, each from `simshuffle.load_scenario`, a file or a name.
        progress: called with name and share done (0 to 1) of each run that is running.
        seeds: how many seeds each run has, counted up from its scenario's seed.
        timeline: the ranks of which the timeline is kept: 'full' for all, 'ranks' for a
            sample, 'none'; if None all, but a sample where that would take more than
            some 3 million rows.
        interval: whether ``meta['intervals']`` gets the 90 % interval of each run's
            last epoch.
        ranges: lowest and highest value (SI units) of inputs by dotted key, only with
            ``interval``; other inputs have default ranges.
        measured: a CSV file of runs that were measured, which narrow the intervals; if
            None those of the scenarios.
        force_size: whether what is too large for this machine by estimate is simulated,
            too.

    Returns:
        All tables; call `save` to write them to a folder. Of several seeds they have a
        column ``seed``, and ``derived['summary']`` has means and 95 % intervals.

    Raises:
        ScenarioError: two runs have the same name, a value of a sweep is not valid, or
            a run has too many packets.
        InputError: ``seeds`` is no number of seeds, a scenario sweeps the seed itself,
            or there is no such ``timeline``, or ``ranges`` are given without
            ``interval``, of no input of a scenario, or without its value; or a run is
            too large for this machine, or ``measured`` does not fit the scenarios.
    """

    def tell(standing: Standing) -> None:
        """Call ``progress`` for each run that is running."""
        for name, share in standing.running.items():
            if progress:
                progress(name, share)

    options = RunOptions(
        scenario=scenario,
        seeds=seeds,
        timeline=timeline,
        interval=interval,
        ranges=ranges or {},
        measured=None if measured is None else Path(measured),
    )
    study, simulation_request = request(options)
    result = engine.run(
        study,
        simulation_request,
        progress=tell if progress else None,
        force_size=force_size,
    )
    assert isinstance(result, SimulationResult)  # noqa: S101 - what its study makes
    return result


def compare(a: Comparable, b: Comparable) -> Comparison:
    """Compare the requests of two results or scenarios, and the outcomes of two
    results.

    If one side is a scenario, only requests are compared, and a note says so.

    Args:
        a, b: each a result or its folder, or a scenario, its file or its name.

    Returns:
        Tables of the differences; printed, what ``simshuffle compare`` prints.

    Raises:
        InputError: one of them cannot be read, is a result of doctor, or they are
            results of different kinds.
    """
    return comparison.compare(comparison.read_side(a), comparison.read_side(b))


def read(folder: str | Path) -> Result:
    """Read the result in ``folder``, of whatever study.

    Long tables are loaded when they are first used.

    Raises:
        InputError: the folder holds no result, a damaged one, or one of a study that is
            not installed.
    """
    return read_folder(Path(folder))
