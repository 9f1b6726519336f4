"""The tables of an accuracy study: measured sensitivities, and expected losses."""

from __future__ import annotations

from simshuffle.study.schema import Schema, amount, count, flag, real, text


def format_number(value: float) -> str:
    """Format a number with four digits, from 1000 on as a whole number with commas."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def format_points(value: float) -> str:
    """Format points of accuracy with two decimals; 0 has no sign."""
    return f"{value:.2f}".replace("-0.00", "0.00")


NORMS = ("batch", "group", "layer", "none")
LAYERS = ("dense", "convolution", "attention")
SENSITIVITY = Schema(
    {
        "model": text("the network"),
        "data": text("the data set"),
        "norm": text("norm of the network", *NORMS),
        "layers": text("kind of most of its layers", *LAYERS),
        "c": amount(
            "points lost per 1/n above that of global shuffle; 0 without batch norm"
        ),
        "c_low": amount(
            "lower end of the 90 % interval of c; empty where none is documented",
            empty=True,
        ),
        "c_high": amount("upper end of that interval", empty=True),
        "rms": amount("distance of settings from the curve, points (root mean square)"),
        "n_low": amount("fewest samples that statistics rested on", empty=True),
        "n_high": amount("most samples that statistics rested on", empty=True),
        "samples_low": count("fewest samples a rank", 1),
        "samples_high": count("most samples a rank", 1),
        "ranks_low": count("fewest ranks", 1),
        "ranks_high": count("most ranks", 1),
        "local_batch": count("samples of a rank in an iteration", 1),
        "steps": count("iterations of a training, at least", 1),
        "runs": count("trainings", 1),
        "source": text("where it is documented"),
    },
    key=("model", "data", "norm"),
)
"""Columns of ``sensitivity.csv`` beside this module: what was measured."""

KINDS = (
    *("as it is", "local batch", "momentum", "recomputed", "pooled", "sync batch norm"),
    *("partial", "oldest", "global", "group norm"),
)
_RANKS = count("ranks, M", 1, head="ranks")
_LOST = real(
    "expected loss against global shuffle, points of accuracy; below 0 for a gain",
    empty=True,
    head="points\nlost",
    look=format_points,
)
_LOW = real(
    "lower end of the 90 % interval of the loss", empty=True, look=format_points
)
_HIGH = real("upper end of that interval", empty=True, look=format_points)
_ENOUGH = flag("whether the upper end is within the tolerance")
_OUTSIDE = text(
    "inputs outside of what was tried when the sensitivity was measured; empty if none"
)
_N = amount(
    "samples that the statistics rest on, n; empty without running statistics",
    empty=True,
    head="n",
    look=format_number,
)

TIMED = ("simulation", "closed forms")
_TIMED = text("origin of epoch_s", *TIMED)
_STRATEGY = text("the scenario's shuffling strategy, with Q")

SETTINGS = Schema(
    {
        "world_size": _RANKS,
        "strategy": _STRATEGY,
        "samples": count("samples of a rank", 1, head="samples\na rank"),
        "local_batch": count("samples of a rank in an iteration", 1),
        "iterations": count("iterations of an epoch", 1, head="iterations"),
        "n": _N,
        "n_low": amount(
            "lower end of the 90 % interval of n, from how ranks differ", empty=True
        ),
        "n_high": amount("upper end of that interval", empty=True),
        "n_global": amount(
            "n of global shuffle", empty=True, head="n global", look=format_number
        ),
        "emulated": count("ranks that were followed to find n; 0 where n is exact"),
        "loss_points": _LOST,
        "low_points": _LOW,
        "high_points": _HIGH,
        "enough": _ENOUGH,
        "outside": _OUTSIDE,
        "epoch_s": amount("s of a warm epoch", head="epoch s", look=".4g"),
        "timed": _TIMED,
    },
    key=("world_size", "strategy"),
    absent={"timed": "simulation"},
)
REMEDIES = Schema(
    {
        "world_size": _RANKS,
        "strategy": _STRATEGY,
        "remedy": text("name of the remedy; 'as it is' for none", head="remedy"),
        "kind": text("kind of the remedy", *KINDS),
        "n": _N,
        "loss_points": _LOST,
        "low_points": _LOW,
        "high_points": _HIGH,
        "own_points": real(
            "expected loss against global shuffle with the same change, points",
            empty=True,
            look=format_points,
        ),
        "epoch_s": amount(
            "s of a warm epoch with the remedy; empty if it is impossible or its costs are unknown",
            empty=True,
            head="epoch s",
            look=".4g",
        ),
        "added_s": real(
            "s that the remedy adds to an epoch",
            empty=True,
            head="added s",
            look="+.3g",
        ),
        "outside": _OUTSIDE,
        "note": text(
            "why the remedy is impossible or not chosen, and what the law leaves out"
        ),
        "enough": _ENOUGH,
        "front": flag(
            "whether no other remedy of the same network loses less in less time"
        ),
        "chosen": flag("whether it is the quickest remedy that is enough"),
    },
    key=("world_size", "strategy", "remedy"),
    absent={"strategy": ""},
)
STORED = {"settings": SETTINGS, "remedies": REMEDIES}
PRINTED_REMEDIES = {
    **REMEDIES.columns,
    "interval": text("90 % interval", head="90 %"),
    "mark": text("* is chosen, + on the front", head=""),
}
"""The columns of ``remedies`` and two that are only printed: interval and mark."""
