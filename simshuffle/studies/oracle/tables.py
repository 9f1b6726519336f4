"""The tables of an oracle: what every way to divide training takes at every scale, and
which is best.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from simshuffle.errors import Problem
from simshuffle.study.schema import Schema, amount, count, flag, real, share, text

LOOP = ("compute_s", "waiting_s", "bubble_s", "exposed_s", "exchange_s", "startup_s")
"""Parts that add up to ``loop_s``; with ``input_s``, to ``epoch_s``."""
MEMORY = ("weights", "gradients", "optimiser", "activations", "buffers")
"""Parts of the memory of a GPU; each a column that ends in ``_nbytes``."""
KEY = ("world_size", "strategy")
GIB = 2.0**30


def gib(nbytes: float) -> str:
    """Format bytes in GiB, with three digits or more, without the unit."""
    value = nbytes / GIB
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def seconds(value: float) -> str:
    """Format seconds with three digits or more, and never with a power of ten.

    Below 50 us it is '0', and below 10 ms there are four decimals.
    """
    if value < 5e-5:
        return "0"
    if value < 0.01:
        return f"{value:.4f}"
    digits = 3 if value < 1 else 2 if value < 100 else 1 if value < 1000 else 0
    return f"{value:.{digits}f}"


def _ms(value: float) -> str:
    """Format seconds as milliseconds with two decimals."""
    return f"{1e3 * value:.2f}"


_WORLD_SIZE = count("ranks, M, one for each GPU", 1, head="GPUs")
_STRATEGY = text("way to divide training, as --strategies and --simulate take it")
_SECONDS = {
    "compute_s": "forward and backward pass and update, of the rank that computes longest",
    "waiting_s": "waiting for the slowest of all ranks, whose compute varies",
    "bubble_s": "idle without communication, as in a pipeline that fills or drains",
    "exposed_s": "communication of the step that nothing hides",
    "exchange_s": (
        "the part of the exchange of samples, at least, that other communication"
        " does not hide"
    ),
    "startup_s": "the first batch, and the pass that measures importance, if there is one",
    "loop_s": "the training loop if it never waits for samples: the sum of the six before",
    "input_s": "waiting for samples: the time by which reading is longer than the loop",
    "epoch_s": "the epoch: loop_s and input_s",
    "epoch_low_s": (
        "the epoch if all communication between replicas is hidden that can be"
    ),
    "epoch_high_s": "the epoch if nothing is hidden, and reading comes before the loop",
    "hidden_s": "communication that goes on beside computing",
    "io_s": "reading, decoding and copying, at least: the slowest resource",
}

STORED = {
    "points": Schema(
        {
            "world_size": _WORLD_SIZE,
            "strategy": _STRATEGY,
            "kind": text("kind of the strategy, as workload.parallelism has it"),
            "ways": count("ranks of a model-parallel group", 1),
            "replicas": count(
                "number of groups, each with samples of its own; under local shuffling also the"
                " number of shards"
            ),
            "hosts": count("hosts that the ranks fill", 1),
            "group_batch": count("samples that a group trains on in an iteration", 1),
            "iterations": count("iterations of the epoch", 1),
            "feasible": flag("whether training can be divided so"),
            "fits": flag(
                "whether memory_nbytes is within the budget; empty without a budget",
                empty=True,
            ),
            "why_not": text(
                "why training cannot be divided so, or why it does not fit; else empty"
            ),
            **{
                name: amount(f"s an epoch: {said}", empty=True)
                for name, said in _SECONDS.items()
            },
            "io_by": text("the slowest resource, whose time is io_s"),
            **{
                f"{part}_nbytes": amount(
                    f"bytes of the fullest GPU: {part}", empty=True
                )
                for part in MEMORY
            },
            "memory_nbytes": amount(
                "bytes of the fullest GPU: the sum of the five", empty=True
            ),
            "bottleneck": text("the largest part of the epoch"),
            "bottleneck_s": amount("s an epoch of the bottleneck", empty=True),
            "hidden_exchange": share(
                "Q*: the largest exchange fraction that lengthens the loop by no more than the"
                " tolerance; empty where no fraction is exchanged",
                empty=True,
            ),
            "samples_per_s": amount("samples trained in a second", empty=True),
            "speedup": amount(
                "samples_per_s over that of data parallelism on 1 GPU", empty=True
            ),
            "efficiency": amount("speedup over world_size", empty=True),
        },
        key=KEY,
    ),
    "communication": Schema(
        {
            "world_size": _WORLD_SIZE,
            "strategy": _STRATEGY,
            "label": text("what is sent"),
            "seconds": amount(
                "s an epoch, hidden or not, of the rank that sends longest"
            ),
        },
        key=(*KEY, "label"),
    ),
    "simulated": Schema(
        {
            "world_size": _WORLD_SIZE,
            "strategy": _STRATEGY,
            "step_closed_s": amount(
                "s of a step by the closed form, each transfer group alone",
                head="closed form",
                look=_ms,
            ),
            "step_fluid_s": amount(
                "s of a step in which all transfers share the cables",
                head="fluid",
                look=_ms,
            ),
            "ratio": amount("step_fluid_s over step_closed_s", look=".3f"),
            "epoch_fluid_s": amount(
                "s of the epoch with steps of step_fluid_s",
                head="epoch s",
                look=seconds,
            ),
        },
        key=KEY,
    ),
    "measured": Schema(
        {
            "world_size": _WORLD_SIZE,
            "strategy": _STRATEGY,
            "measured_s": amount(
                "s of the epoch, as it was measured", head="measured", look=seconds
            ),
            "predicted_s": amount(
                "epoch_s of the point in points.csv", head="predicted", look=seconds
            ),
            "accuracy": real(
                "1 - |predicted - measured| / measured", look=".1fpercent"
            ),
        },
        key=KEY,
    ),
}
RECOMMENDED = Schema(
    {
        "world_size": count("ranks, M; 0 for the best of all world sizes", 0),
        "strategy": text("fastest strategy that fits; empty if none fits"),
        "at": count("ranks of the fastest strategy", 1, empty=True),
        "epoch_s": amount("s of an epoch of the fastest strategy", empty=True),
        "epoch_low_s": amount("lower end of epoch_s", empty=True),
        "epoch_high_s": amount("upper end of epoch_s", empty=True),
        "memory_nbytes": amount(
            "bytes of the fullest GPU under the fastest strategy", empty=True
        ),
        "second": text(
            "second fastest strategy on the same number of ranks; empty if there is"
            " none"
        ),
        "margin": amount(
            "share by which the epoch of the second is longer", empty=True
        ),
        "clear": flag(
            "whether the fastest strategy is faster than the second anywhere in both intervals,"
            " with the same reading for both; empty without a second",
            empty=True,
        ),
        "least_memory": text("where none fits: the strategy that takes least memory"),
        "least_nbytes": amount(
            "bytes of the fullest GPU under the strategy that takes least memory",
            empty=True,
        ),
        "fits_from": count(
            "where none fits: the fewest ranks on which a strategy fits", 1, empty=True
        ),
    },
    key=("world_size",),
)


ALL = 0
"""The world size that stands for all."""


def usable(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points that are possible and within the budget, fastest first.

    Without a budget all possible ones fit. Of equally fast points the first is the one
    with the shorter loop, then with less memory.
    """
    fitting = points["feasible"] & (points["fits"].isna() | (points["fits"] == True))  # noqa: E712
    order = ["epoch_s", "loop_s", "memory_nbytes"]
    return points[fitting].sort_values(order, kind="stable")


def recommended(points: pd.DataFrame) -> pd.DataFrame:
    """Return the table `RECOMMENDED`: a row for all world sizes, then one for each.

    The first row is that of the world size of the fastest point, with world_size `ALL`.
    The row of a world size without a usable point has the smallest that has one, if
    any.
    """
    fitting = usable(points)
    best = fitting["world_size"].iloc[:1].tolist() or points["world_size"]
    rows = [_row(ALL, points, fitting[fitting["world_size"].isin(best)])]
    for size, of_size in points.groupby("world_size"):
        rows.append(
            _row(int(str(size)), of_size, fitting[fitting["world_size"] == size])
        )
    for row in rows:
        if not row["strategy"] and row["world_size"] != ALL and len(fitting):
            row["fits_from"] = int(fitting["world_size"].min())
    return RECOMMENDED.framed(rows)


def _row(size: int, points: pd.DataFrame, fitting: pd.DataFrame) -> dict[str, Any]:
    """Return a row of `RECOMMENDED`: the fastest point and the margin to the second.

    Without fitting points it names the possible point of least memory, if there is one.
    Columns that do not apply are left out, or ''.

    Args:
        size: the world size, or `ALL`.
        points: the points of the world size; of all for `ALL`.
        fitting: those that are usable, fastest first; for `ALL` of the best world size.
    """
    row: dict[str, Any] = {
        "world_size": size,
        "strategy": "",
        "second": "",
        "least_memory": "",
    }
    if fitting.empty:
        possible = points[points["feasible"]].sort_values(
            "memory_nbytes", kind="stable"
        )
        if len(possible):
            smallest = possible.iloc[0]
            row |= {
                "least_memory": smallest["strategy"],
                "least_nbytes": smallest["memory_nbytes"],
            }
        return row
    first, *slower_rows = fitting.to_dict("records")
    copied_columns = (
        "strategy",
        "epoch_s",
        "epoch_low_s",
        "epoch_high_s",
        "memory_nbytes",
    )
    row |= {**{name: first[name] for name in copied_columns}, "at": first["world_size"]}
    if slower_rows:
        second = slower_rows[0]
        row |= {
            "second": second["strategy"],
            "margin": second["epoch_s"] / first["epoch_s"] - 1.0,
            "clear": clearly(first, second),
        }
    return row


def clearly(first: dict[Any, Any], second: dict[Any, Any]) -> bool:
    """Return true if ``first`` is faster wherever the two points lie in their
    intervals.

    Both read the same samples, hidden or not, so at one scale the reading that the
    upper end puts before the loop is left out of it.
    """
    highest = max(first["epoch_high_s"] - first["io_s"], first["epoch_s"])
    return bool(highest < second["epoch_low_s"])


def nothing_fits(points: pd.DataFrame, budget: float | None) -> Problem | None:
    """Return the problem where possible points are all over the budget (bytes).

    None if a point is usable, no point is possible, or there is no budget.
    """
    if len(usable(points)):
        return None
    possible = points[points["feasible"]].sort_values("memory_nbytes", kind="stable")
    if possible.empty or budget is None:
        return None  # whatever is asked for, something is possible; and without a budget it fits
    smallest = possible.iloc[0]
    rule = "must be enough for one strategy at one world size"
    remedy = (
        f"{smallest['strategy']} at {smallest['world_size']} GPUs takes least memory,"
        f" {smallest['memory_nbytes'] / GIB:.3g} GiB."
    )
    return Problem("--budget-memory", rule, f"{budget / GIB:.3g} GiB", remedy)
