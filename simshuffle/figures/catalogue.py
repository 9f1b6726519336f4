"""Every kind of figure for papers: the results it takes, its chart, and the table under it."""

from __future__ import annotations

from simshuffle.figures import completion, links, storage
from simshuffle.figures import of_runs as runs
from simshuffle.figures import of_studies as studies
from simshuffle.figures.kinds import RUNS, Kind
from simshuffle.figures.of_studies import own

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
