"""The tables of both: their columns."""

from __future__ import annotations

from simshuffle.studies.ablation.shapley import CONTRIBUTION_COLUMNS

_LABEL = "'epoch' for the whole epoch, or one of the papers' labels, which add up to it"

END_COLUMNS = {
    "place": "'start' or 'end'",
    "name": "strategy, Q and world size",
    "world_size": "ranks, M",
    "exchange_fraction": "Q",
    "switched_more": "whether more is switched than start and end differ in",
}
SWITCH_COLUMNS = {
    "switch": "key of the exchange that is switched",
    "start": "its value at the start",
    "end": "its value at the end",
}
RUN_COLUMNS = {
    "state": (
        "for each switch, in the order of switches.csv, 0 for the value of the start and 1 for that"
        " of the end"
    ),
    "seed": "seed of the scenario",
    "label": _LABEL,
    "seconds": "s of the second epoch, mean over ranks",
}
ALONE_COLUMNS = {
    "key": "key of the exchange",
    "value": "its value in this run",
    "base": "what it is set in: the exchange of the 'start' or of the 'end'",
    "seed": "seed of the scenario",
    "label": _LABEL,
    "seconds": "s of the second epoch, mean over ranks",
}
CHANGE_COLUMNS = {
    "key": ALONE_COLUMNS["key"],
    "value": ALONE_COLUMNS["value"],
    "base": ALONE_COLUMNS["base"],
    "label": _LABEL,
    "change_s": "s by which this value alone changes the label, mean over seeds",
    "min_s": "lowest of the seeds",
    "max_s": "highest of the seeds",
}

LIMIT_COLUMNS = {
    "way": "how the exchange is carried out",
    "world_size": "ranks, M",
    "iterations": "iterations of the epoch",
    "samples_of_rank": (
        "the most samples that each rank can exchange: those of the smallest shard, or what the SSD"
        " has room for"
    ),
    "baseline_s": "s of the second epoch without exchange",
    "samples": "samples of each rank whose exchange is hidden, at most",
    "exchange_fraction": "Q*: that over N / M; 1 if all can be exchanged",
    "added": "share of baseline_s that their exchange adds",
    "steady": "whether all that was tried agrees: less is hidden, and more is not",
    "over_s": "s that one sample more adds; empty where all can be exchanged",
    "bottleneck": (
        "whose removal saves most with one sample more, if it saves a tenth; empty where all can be"
        " exchanged"
    ),
    "saved_s": "s that this removal saves then",
    "tier": (
        "where that is the wire: the tier of cables of which one carries the exchange longest; else"
        " empty"
    ),
}
POINT_COLUMNS = {
    "way": LIMIT_COLUMNS["way"],
    "world_size": "ranks, M",
    "samples": "samples that each rank exchanges in the epoch",
    "exchange_fraction": "Q",
    "removed": "mechanism that is removed; empty for none",
    "epoch_s": "s of the second epoch",
    "added": (
        "share of the epoch without exchange that it adds; without 'storage reads', to one that has"
        " none either"
    ),
}

COLUMNS: dict[str, dict[str, dict[str, str]]] = {
    "ablation": {
        "ends": END_COLUMNS,
        "switches": SWITCH_COLUMNS,
        "runs": RUN_COLUMNS,
        "alone": ALONE_COLUMNS,
    },
    "hiding": {"limits": LIMIT_COLUMNS, "points": POINT_COLUMNS},
}
"""Columns and their meaning: by kind of result, then by name of the table. These are stored."""
DERIVED: dict[str, dict[str, dict[str, str]]] = {
    "ablation": {"contributions": CONTRIBUTION_COLUMNS, "changes": CHANGE_COLUMNS},
    "hiding": {},
}
"""The same of tables that follow from those."""
