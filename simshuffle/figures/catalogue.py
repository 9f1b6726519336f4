"""Every kind of figure for papers: the results it takes, its chart, and the table under it."""

from __future__ import annotations

from simshuffle.figures import completion, links, of_runs, of_studies, storage
from simshuffle.figures.kinds import RUNS, Kind

_SEEDS = ("simulation", "simulation_over_seeds")
_TTA = ("time_to_accuracy",)
_SIZE, _Q, _EPOCH, _EXCHANGE = "world_size", "exchange_fraction", "epoch_s", "exchange_total_s"

CATALOGUE = {
    "breakdown": Kind(RUNS, of_runs.breakdown, of_runs.breakdown_table, RUNS),
    "scaling": Kind(RUNS, of_runs.over(_SIZE, _EPOCH, ideal=True), of_runs.scaling_table, RUNS),
    "exchange": Kind(
        RUNS, of_runs.over(_SIZE, _EXCHANGE), of_runs.rows_over(_SIZE, _EXCHANGE), RUNS
    ),
    "hidden": Kind((*RUNS, "hiding"), of_runs.hidden, of_runs.hidden_table, RUNS),
    "fraction": Kind(RUNS, of_runs.over(_Q, _EPOCH), of_runs.rows_over(_Q, _EPOCH), RUNS),
    "congestion": Kind(("congestion",), of_studies.congestion, of_studies.congestion_table),
    "links": Kind(_SEEDS, links.chart, links.table, _SEEDS, links.notes),
    "completion": Kind(
        (*_SEEDS, "congestion"), completion.chart, completion.table, _SEEDS, completion.notes
    ),
    "accuracy": Kind(_TTA, of_studies.accuracy, of_studies.accuracy_table),
    "frontier": Kind(_TTA, of_studies.frontier, of_studies.frontier_table),
    "waterfall": Kind(("ablation",), of_studies.waterfall, of_studies.waterfall_table),
    "parallel-strategies": Kind(
        ("oracle",), of_studies.parallel_strategies, of_studies.parallel_strategies_table
    ),
    "memory": Kind(("oracle",), of_studies.memory, of_studies.memory_table),
    "storage-accuracy": Kind(_TTA, of_studies.storage_accuracy, of_studies.storage_accuracy_table),
    "storage": Kind((), storage.chart, storage.table, notes=storage.notes),
}
"""By the names of `simshuffle.figures.KINDS`."""
