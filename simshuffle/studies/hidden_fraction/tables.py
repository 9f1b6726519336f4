"""The tables of a search for the largest hidden exchange fraction."""

from __future__ import annotations

from simshuffle.study.schema import Schema, amount, count, flag, real, share, text

NAMES = {
    "authors": "as the authors' code",
    "pair": "IS-Pair's schedule",
    "encoded": "IS-Pair's, encoded, no barriers",
    "wire": "the wire alone",
    "own": "the scenario's own",
}
"""Ways of carrying an exchange out, and what they are called."""
_WAY = text("how the exchange is carried out", *NAMES)
_WORLD_SIZE = count("ranks, M", 2)

STORED = {
    "limits": Schema(
        {
            "way": _WAY,
            "world_size": _WORLD_SIZE,
            "iterations": count("iterations of the epoch"),
            "samples_of_rank": count(
                "the most samples that each rank can exchange: those of the smallest shard, or what"
                " the SSD has room for"
            ),
            "baseline_s": amount("s of the second epoch without exchange"),
            "samples": count("samples of each rank whose exchange is hidden, at most"),
            "exchange_fraction": share("Q*: that over N / M; 1 if all can be exchanged"),
            "added": real("share of baseline_s that their exchange adds"),
            "steady": flag("whether all that was tried agrees: less is hidden, and more is not"),
            "over_s": real(
                "s that one sample more adds; empty where all can be exchanged", empty=True
            ),
            "bottleneck": text(
                "whose removal saves most with one sample more, if it saves a tenth; empty where"
                " all can be exchanged"
            ),
            "saved_s": real("s that this removal saves then", empty=True),
            "tier": text(
                "where that is the wire: the tier of cables of which one carries the exchange"
                " longest; else empty"
            ),
        },
        key=("way", "world_size"),
    ),
    "points": Schema(
        {
            "way": _WAY,
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
