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
_BASE = text(
    "exchange in which the value is set: that of the 'start' or that of the 'end'",
    *BASES,
)
_SET = {
    "key": text("key of the exchange"),
    "value": text("value of the key in this run"),
    "base": _BASE,
}
_SEED = count("seed of the scenario")
_SECONDS = amount("s of the second epoch, mean over ranks")
_LOWEST = real("lowest value over the seeds")
_HIGHEST = real("highest value over the seeds")

ABLATION = {
    "ends": Schema(
        {
            "place": text("'start' or 'end'", *BASES),
            "name": text("strategy, Q and world size"),
            "world_size": count("ranks, M"),
            "exchange_fraction": share("Q"),
            "switched_more": flag(
                "whether --also switches more keys than those in which start and end differ"
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
                "for each switch, in the order of switches.csv: 0 for its value at the start, 1"
                " for its value at the end"
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
            "s by which the switch changes the label if it is switched first, mean over seeds;"
            " empty if it cannot be switched first",
            empty=True,
            head="first",
            look=CHANGE,
        ),
        "last_s": real(
            "s by which the switch changes the label if all other switches are on already, mean"
            " over seeds; empty if it cannot be switched last",
            empty=True,
            head="last",
            look=CHANGE,
        ),
        "mean_s": real(
            "s by which the switch changes the label, mean over all possible orders of switching"
            " (Shapley value) and over seeds; all switches add up to 'all'",
            head="any order",
            look=CHANGE,
        ),
        "min_s": real("lowest value of mean_s over the seeds"),
        "max_s": _HIGHEST,
        "share": real(
            "mean_s / the change of the whole epoch by all switches",
            empty=True,
            look=".1%",
        ),
    }
)
STEPS = Schema(
    {
        **CONTRIBUTIONS.columns,
        "values": text("values between which it is switched", head="from, to"),
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
                "most samples that each rank can exchange: the size of the smallest shard, or as"
                " many as the SSD has room for",
                head="N/M",
            ),
            "baseline_s": amount(
                "s of the second epoch without exchange", head="epoch s", look=".3f"
            ),
            "samples": count("most samples of each rank whose exchange is hidden"),
            "samples_low": count(
                "lower end of the interval of samples, from the 95 % intervals of the epochs and"
                " the distance to the nearest simulated number"
            ),
            "samples_high": count("upper end of the interval of samples"),
            "exchange_fraction": share(
                "Q*: samples / (N / M); 1 if all samples can be exchanged"
            ),
            "added": real(
                "share of baseline_s that exchanging these samples adds; below 0 by chance, where"
                " parts of the epochs were simulated"
            ),
            "steady": flag(
                "whether all simulations agree: fewer samples are hidden, and more samples are"
                " not"
            ),
            "over_s": real(
                "s by which the epoch is longer with the fewest samples that are not hidden;"
                " empty where all can be exchanged",
                empty=True,
            ),
            "bottleneck": text(
                "mechanism whose removal saves most with these samples, if it saves a tenth;"
                " empty where all can be exchanged"
            ),
            "saved_s": real(
                "s that this removal saves; empty where closed forms name the mechanism",
                empty=True,
            ),
            "tier": text(
                "if the bottleneck is the wire: tier of the cable that carries the exchange"
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
                "share by which the epoch is longer than one without exchange; if 'storage reads'"
                " are removed, than one without exchange and storage reads"
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
