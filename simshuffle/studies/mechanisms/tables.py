"""The tables of an ablation, and of a search for the largest hidden exchange fraction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simshuffle.report import report
from simshuffle.study.schema import Schema, amount, count, flag, real, share, text

BASES = ("start", "end")
LABELS = (report.WHOLE, *report.LABELS)
ALL = "all"  # in the place of a switch: all of them
_LABEL = text(
    "'epoch' for the whole epoch, or one of the papers' labels, which add up to it",
    *LABELS,
)
_BASE = text("what it is set in: the exchange of the 'start' or of the 'end'", *BASES)
_SET = {
    "key": text("key of the exchange"),
    "value": text("its value in this run"),
    "base": _BASE,
}
_SEED = count("seed of the scenario")
_SECONDS = amount("s of the second epoch, mean over ranks")
_LOWEST = real("lowest of the seeds")
_HIGHEST = real("highest of the seeds")

ABLATION = {
    "ends": Schema(
        {
            "place": text("'start' or 'end'", *BASES),
            "name": text("strategy, Q and world size"),
            "world_size": count("ranks, M"),
            "exchange_fraction": share("Q"),
            "switched_more": flag(
                "whether more is switched than start and end differ in"
            ),
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
        {**_SET, "seed": _SEED, "label": _LABEL, "seconds": _SECONDS},
        key=(*_SET, "seed", "label"),
    ),
}
CHANGE = "+.3f"  # how seconds that a switch changes are printed
CONTRIBUTIONS = Schema(
    {
        "switch": text(f"key that is switched; '{ALL}' for all of them"),
        "label": _LABEL,
        "first_s": real(
            "s by which the switch changes the label, switched first and alone, mean over seeds;"
            " empty if it cannot be",
            empty=True,
            head="first",
            look=CHANGE,
        ),
        "last_s": real(
            "the same, switched when all others are on already; empty if it cannot be",
            empty=True,
            head="last",
            look=CHANGE,
        ),
        "mean_s": real(
            "the same, mean over all orders of switching that there can be (Shapley value), and"
            " over seeds; all switches add up to 'all'",
            head="any order",
            look=CHANGE,
        ),
        "min_s": real("lowest of the seeds of that mean over orders"),
        "max_s": _HIGHEST,
        "share": real(
            "mean_s over the change of the whole epoch by all switches",
            empty=True,
            look=".1%",
        ),
    }
)
STEPS = Schema(
    {
        **CONTRIBUTIONS.columns,
        "values": text("those that are switched between", head="from, to"),
        "range": text(
            "from the lowest to the highest of the seeds", head="range over seeds"
        ),
        **dict.fromkeys(
            LABELS, real("s by which the switch changes the label", look=CHANGE)
        ),
    }
)
"""Printed columns of switches."""
CHANGES = Schema(
    {
        **_SET,
        "label": _LABEL,
        "change_s": real(
            "s by which this value alone changes the label, mean over seeds"
        ),
        "min_s": _LOWEST,
        "max_s": _HIGHEST,
    }
)
ALONE = Schema(
    {
        **_SET,
        "base": replace(_BASE, head="in the"),
        "range": text("from the lowest to the highest of the seeds"),
        **dict.fromkeys(
            LABELS, real("s by which the value changes the label", look=CHANGE)
        ),
    }
)
"""Printed columns of values that are set alone."""


# ----------------------------------------------------------------------------------- hiding

OWN_WAYS = ("own", "own 2", "own 3", "own 4")
"""Schedules of the scenario's own runs."""
NAMES = {
    **dict.fromkeys(OWN_WAYS, "the scenario's own"),
    "authors": "as the authors' code",
    "pair": "IS-Pair's schedule",
    "encoded": "IS-Pair's, encoded, no barriers",
    "wire": "the wire alone",
}
"""Ways to exchange, the scenario's own first, and what they are called."""


def title_of(way: str, titles: Mapping[str, str]) -> str:
    """Return the title of a way (of `NAMES`) in texts and figures.

    'own: TITLE' for an own way, or 'the scenario's own' where ``titles`` lacks it; else
    'other: NAME'.
    """
    if way in OWN_WAYS:
        return f"own: {titles[way]}" if way in titles else NAMES[way]
    return f"other: {NAMES[way]}"


_VARIANT = text("how the exchange is carried out", *NAMES)
_WORLD_SIZE = count("ranks, M", 2, head="ranks")

HIDING = {
    "limits": Schema(
        {
            "way": _VARIANT,
            "world_size": _WORLD_SIZE,
            "iterations": count("iterations of the epoch"),
            "samples_of_rank": count(
                "the most samples that each rank can exchange: those of the smallest shard, or what"
                " the SSD has room for",
                head="N/M",
            ),
            "baseline_s": amount(
                "s of the second epoch without exchange", head="epoch s", look=".3f"
            ),
            "samples": count("samples of each rank whose exchange is hidden, at most"),
            "samples_low": count(
                "lower end of an interval of that number: by the 95 % intervals of the epochs, and"
                " by the distance to the nearest number that was simulated"
            ),
            "samples_high": count("upper end"),
            "exchange_fraction": share(
                "Q*: that over N / M; 1 if all can be exchanged"
            ),
            "added": real(
                "share of baseline_s that their exchange adds; below 0 by chance, where parts of"
                " the epochs were simulated"
            ),
            "steady": flag(
                "whether all that was tried agrees: less is hidden, and more is not"
            ),
            "over_s": real(
                "s by which the epoch is longer with the fewest samples that were found not to be"
                " hidden; empty where all can be exchanged",
                empty=True,
            ),
            "bottleneck": text(
                "whose removal saves most with these samples, if it saves a tenth; empty where all"
                " can be exchanged"
            ),
            "saved_s": real(
                "s that this removal saves then; empty where closed forms name it",
                empty=True,
            ),
            "tier": text(
                "where that is the wire: the tier of cables of which one carries the exchange"
                " longest; else empty"
            ),
        },
        key=("way", "world_size"),
        newer={"samples_low": "samples", "samples_high": "samples"},
    ),
    "points": Schema(
        {
            "way": _VARIANT,
            "world_size": _WORLD_SIZE,
            "samples": count("samples that each rank exchanges in the epoch"),
            "exchange_fraction": share("Q"),
            "removed": text("mechanism that is removed; empty for none"),
            "epoch_s": amount("s of the second epoch"),
            "added": real(
                "share of the epoch without exchange that it adds; without 'storage reads', to one"
                " that has none either"
            ),
        },
        key=("way", "world_size", "samples", "removed"),
    ),
}
SIZES = Schema(
    {
        **HIDING["limits"].columns,
        **dict.fromkeys(NAMES, text("largest hidden Q, and samples of a rank")),
    }
)
"""Printed columns of world sizes: a column for each variant."""
REMOVALS = (
    "barriers",
    "host work",
    "storage writes",
    "storage reads",
    "no overlap",
    "wire",
)
ENDS = Schema(
    {
        "way": _VARIANT,
        "world_size": _WORLD_SIZE,
        "tried": count("samples of a rank that are no longer hidden", head="samples"),
        "added": real(
            "ms by which they make the epoch longer", head="longer", look=".1f"
        ),
        **{
            name: real(
                "ms that its removal saves", head=name.replace(" ", "\n"), look=".1f"
            )
            for name in REMOVALS
        },
        "most": text("whose removal saves most"),
    }
)
"""Printed columns of the bottlenecks that end the hiding."""
