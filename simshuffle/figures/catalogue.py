"""Every kind of figure for papers: the results it takes, its chart, and the table under it; and
finding one."""

from __future__ import annotations

from collections.abc import Sequence

from simshuffle.errors import InputError, Problem
from simshuffle.figures import KINDS, completion, links, storage
from simshuffle.figures import of_runs as runs
from simshuffle.figures import of_studies as studies
from simshuffle.figures.kinds import RUNS, VERBS, Given, Kind
from simshuffle.figures.of_studies import own
from simshuffle.spec.library import nearest

_SEEDS = ("simulation", "simulation_over_seeds")
_TTA = ("time_to_accuracy",)
_SIZE, _Q, _EPOCH, _EXCHANGE = "world_size", "exchange_fraction", "epoch_s", "exchange_total_s"

CATALOGUE = {
    "breakdown": Kind(RUNS, runs.breakdown, runs.breakdown_table, RUNS),
    "scaling": Kind(RUNS, runs.over(_SIZE, _EPOCH, ideal=True), runs.scaling_table, RUNS),
    "exchange": Kind(RUNS, runs.over(_SIZE, _EXCHANGE), runs.rows_over(_SIZE, _EXCHANGE), RUNS),
    "hidden": Kind((*RUNS, "hiding"), runs.hidden, runs.hidden_table, RUNS),
    "fraction": Kind(RUNS, runs.over(_Q, _EPOCH), runs.rows_over(_Q, _EPOCH), RUNS),
    "congestion": Kind(("congestion",), own("heat"), studies.congestion_table),
    "links": Kind(_SEEDS, links.chart, links.table, _SEEDS, links.notes),
    "completion": Kind(
        (*_SEEDS, "congestion"), completion.chart, completion.table, _SEEDS, completion.notes
    ),
    "accuracy": Kind(_TTA, own("accuracy_time", studies.simulated), studies.accuracy_table),
    "frontier": Kind(_TTA, own("frontier", studies.simulated), studies.frontier_table),
    "waterfall": Kind(("ablation",), own("waterfall"), studies.waterfall_table),
    "parallel-strategies": Kind(
        ("oracle",),
        own("times", studies.parallel_strategies_table),
        studies.parallel_strategies_table,
    ),
    "memory": Kind(("oracle",), own("memory"), studies.memory_table),
    "storage-accuracy": Kind(_TTA, studies.storage_accuracy, studies.storage_accuracy_table),
    "storage": Kind((), storage.chart, storage.table, notes=storage.notes),
}
"""By the names of `simshuffle.figures.KINDS`."""


def kind_named(name: str) -> Kind:
    """The kind of figure of that name.

    Raises:
        InputError: there is none.
    """
    if name not in KINDS:
        problem = Problem("KIND", "no such kind of figure", repr(name), nearest(name, [*KINDS]))
        raise InputError(problem, "command line")
    return CATALOGUE[name]


def check_results(name: str, given: Sequence[Given]) -> None:
    """See that a kind of figure can be drawn from these results.

    Raises:
        InputError: there are none, too many, or others than it takes.
    """
    kind = kind_named(name)
    takes = " or ".join(f"'simshuffle {VERBS[of]}'" for of in kind.takes)
    problems = []
    if not kind.takes and given:
        problems.append(
            Problem("RESULT", f"{name} needs no result", given[0].name, "Leave it out.")
        )
    if kind.takes and not given:
        problems.append(Problem("RESULT", f"{name} needs a result folder of {takes}", "none"))
    for of in given:
        if kind.takes and of.result.study.kind not in kind.takes:
            what = f"{of.name}, of kind {of.result.study.kind}"
            problems.append(Problem("RESULT", f"{name} takes results of {takes}", what))
    if not problems and len(given) > 1:
        kinds = {of.result.study.kind for of in given}
        if not kinds <= set(kind.together):
            rule = f"{name} takes one result of that kind"
            problems.append(Problem("RESULT", rule, str(len(given)), "Give one folder."))
    if problems:
        raise InputError(problems, "command line")
