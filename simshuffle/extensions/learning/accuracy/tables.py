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
        "norm": text("what it normalises by", *NORMS),
        "layers": text("what most of its layers are", *LAYERS),
        "c": amount(
            "points lost for each 1/n more than under global shuffle; 0 without batch norm"
        ),
        "c_low": amount(
            "lower end of its 90 % interval; empty where none is documented", empty=True
        ),
        "c_high": amount("upper end", empty=True),
        "rms": amount("points that settings lie beside the curve (root mean square)"),
        "n_low": amount("fewest samples that statistics rested on", empty=True),
        "n_high": amount("most", empty=True),
        "samples_low": count("fewest samples a rank", 1),
        "samples_high": count("most", 1),
        "ranks_low": count("fewest ranks", 1),
        "ranks_high": count("most", 1),
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
    "points of accuracy expected to be lost against global shuffle; below 0 gained",
    empty=True,
    head="points\nlost",
    look=format_points,
)
_LOW = real("lower end of its 90 % interval", empty=True, look=format_points)
_HIGH = real("upper end", empty=True, look=format_points)
_ENOUGH = flag("whether that end is within the tolerance")
_OUTSIDE = text(
    "what of it was never tried when the sensitivity was measured; empty if nothing"
)
_N = amount(
    "samples that the statistics rest on, n; empty without running statistics",
    empty=True,
    head="n",
    look=format_number,
)

TIMED = ("simulation", "closed forms")
_TIMED = text("what epoch_s is from", *TIMED)
_STRATEGY = text("the scenario's shuffling strategy, with Q")

SETTINGS = Schema(
    {
        "world_size": _RANKS,
        "strategy": _STRATEGY,
        "samples": count("samples of a rank", 1, head="samples\na rank"),
        "local_batch": count("samples of a rank in an iteration", 1),
        "iterations": count("of an epoch", 1, head="iterations"),
        "n": _N,
        "n_low": amount(
            "lower end of the 90 % interval of n, from how ranks differ", empty=True
        ),
        "n_high": amount("upper end", empty=True),
        "n_global": amount(
            "n of global shuffle", empty=True, head="n global", look=format_number
        ),
        "emulated": count("ranks that were followed to know n; 0 where it is exact"),
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
        "remedy": text("what is done; 'as it is' for nothing", head="remedy"),
        "kind": text("what sort of remedy", *KINDS),
        "n": _N,
        "loss_points": _LOST,
        "low_points": _LOW,
        "high_points": _HIGH,
        "own_points": real(
            "the same against global shuffle with the same change",
            empty=True,
            look=format_points,
        ),
        "epoch_s": amount(
            "s of a warm epoch with it; empty where it cannot be had, or no costs are known",
            empty=True,
            head="epoch s",
            look=".4g",
        ),
        "added_s": real(
            "s that this is longer than as it is",
            empty=True,
            head="added s",
            look="+.3g",
        ),
        "outside": _OUTSIDE,
        "note": text(
            "why it cannot be had or is not chosen, and what the law leaves out"
        ),
        "enough": _ENOUGH,
        "front": flag(
            "whether no other remedy of the same network loses less in less time"
        ),
        "chosen": flag("the quickest that is enough; as it is, if that is"),
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
