"""The tables of an ablation: those that are stored, and what follows from them."""

from __future__ import annotations

from simshuffle.results import report
from simshuffle.study.schema import Schema, amount, count, flag, real, share, text

BASES = ("start", "end")
LABELS = (report.WHOLE, *report.LABELS)
ALL = "all"
"""In the place of a switch: all of them."""
_LABEL = text(
    "'epoch' for the whole epoch, or one of the papers' labels, which add up to it", *LABELS
)
_KEY, _VALUE = text("key of the exchange"), text("its value in this run")
_BASE = text("what it is set in: the exchange of the 'start' or of the 'end'", *BASES)
_SEED = count("seed of the scenario")
_SECONDS = amount("s of the second epoch, mean over ranks")
_LOWEST, _HIGHEST = real("lowest of the seeds"), real("highest of the seeds")

STORED = {
    "ends": Schema(
        {
            "place": text("'start' or 'end'", *BASES),
            "name": text("strategy, Q and world size"),
            "world_size": count("ranks, M"),
            "exchange_fraction": share("Q"),
            "switched_more": flag("whether more is switched than start and end differ in"),
        },
        key=("place",),
    ),
    "switches": Schema(
        {
            "switch": text("key of the exchange that is switched"),
            "start": text("its value at the start"),
            "end": text("its value at the end"),
        },
        key=("switch",),
    ),
    "runs": Schema(
        {
            "state": text(
                "for each switch, in the order of switches.csv, 0 for the value of the start and 1"
                " for that of the end"
            ),
            "seed": _SEED,
            "label": _LABEL,
            "seconds": _SECONDS,
        },
        key=("state", "seed", "label"),
    ),
    "alone": Schema(
        {
            "key": _KEY,
            "value": _VALUE,
            "base": _BASE,
            "seed": _SEED,
            "label": _LABEL,
            "seconds": _SECONDS,
        },
        key=("key", "value", "base", "seed", "label"),
    ),
}
CONTRIBUTIONS = Schema(
    {
        "switch": text(f"key that is switched; '{ALL}' for all of them"),
        "label": _LABEL,
        "first_s": real(
            "s by which the switch changes the label, switched first and alone, mean over seeds;"
            " empty if it cannot be",
            empty=True,
        ),
        "last_s": real(
            "the same, switched when all others are on already; empty if it cannot be", empty=True
        ),
        "mean_s": real(
            "the same, mean over all orders of switching that there can be (Shapley value), and"
            " over seeds; all switches add up to 'all'"
        ),
        "min_s": real("lowest of the seeds of that mean over orders"),
        "max_s": _HIGHEST,
        "share": real("mean_s over the change of the whole epoch by all switches", empty=True),
    }
)
CHANGES = Schema(
    {
        "key": _KEY,
        "value": _VALUE,
        "base": _BASE,
        "label": _LABEL,
        "change_s": real("s by which this value alone changes the label, mean over seeds"),
        "min_s": _LOWEST,
        "max_s": _HIGHEST,
    }
)
