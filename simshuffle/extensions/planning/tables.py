"""The tables of a plan: their columns, and what they mean."""

from __future__ import annotations

from typing import Any

import pandas as pd

from simshuffle.study.schema import Schema, amount, count, flag, real, share, text

_STRATEGY = text("strategy, with Q or the source that it reads from", head="strategy")
STRATEGIES = Schema(
    {
        "strategy": _STRATEGY,
        "exchange": text("strategy, as workload.exchange has it"),
        "exchange_fraction": share("Q; empty under global shuffle", empty=True),
        "kept_nbytes": amount(
            "bytes that a host keeps", head="a host\nkeeps", look="bytes"
        ),
        "capacity_nbytes": amount(
            "bytes that a host has room for", head="of", look="bytes"
        ),
        "fits": flag("whether a host has room"),
        "why": text("why the strategy was not simulated; empty if it was"),
        "epoch_s": amount("s of a warm epoch", empty=True, head="epoch s", look=".4g"),
        "io_share": share(
            "share of the epoch for I/O: a rank's own, and waiting for the I/O of others",
            empty=True,
            head="I/O",
            look=".2gpercent",
        ),
        "exchange_share": share(
            "share of the epoch for exchanging samples, own and awaited",
            empty=True,
            head="exchange",
            look=".2gpercent",
        ),
        "staging_s": amount(
            "s of copying samples to the hosts before the first epoch", empty=True
        ),
        "epochs": count(
            "epochs of the training, to the target where there is one", empty=True
        ),
        "period_s": amount(
            "s of training between two checkpoints, by Daly; empty without failures",
            empty=True,
            head="save\nevery s",
            look=".3g",
        ),
        "goodput": share(
            "share of the time that is useful with this period",
            empty=True,
            look=".3gpercent",
        ),
        "spares": count(
            "spare hosts with which waiting for hosts is at most 1 % of the time; empty if the"
            " machine has too few",
            empty=True,
        ),
        "accuracy": share(
            "best accuracy of its curve; empty without a curve", empty=True
        ),
        "hours": amount("hours of the training", empty=True, head="hours", look=".4g"),
        "time_cost": amount("cost of the host-hours of the training", empty=True),
        "storage_cost": amount(
            "cost of SSDs and file system, by their prices", empty=True
        ),
        "cost": amount(
            "total cost; in host-hours where nothing else has a price",
            empty=True,
            head="cost",
            look=".4g",
        ),
        "command": text("command that repeats the run; the last epoch is the warm one"),
        "month": text("command that repeats its months; empty without failures"),
        "chosen": flag(
            "whether it is the cheapest that reaches the target within the budget"
        ),
        "files_per_s": amount(
            "opens per second of the smallest file system with which I/O takes at most io_share of"
            " an epoch; empty if the strategy does not read from it, or none is enough",
            empty=True,
            head="smallest\nfiles/s",
            look=".3g",
        ),
        "bytes_per_s": amount(
            "bytes/s of that file system",
            empty=True,
            head="file system\nGB/s",
            look=lambda bytes_per_s: f"{bytes_per_s / 1e9:.3g}",
        ),
    },
    key=("strategy",),
)
PROBES = Schema(
    {
        "question": text("what was searched for", "file system", "hidden exchange"),
        "strategy": _STRATEGY,
        "command": text("command that repeats the run"),
        "files_per_s": amount("opens per second of the file system", empty=True),
        "bytes_per_s": amount("bytes/s of the file system", empty=True),
        "exchange_fraction": share("Q", empty=True),
        "epoch_s": amount("s of the warm epoch"),
        "io_share": share("share of the epoch for I/O", empty=True),
        "added": real(
            "time that the exchange adds, over the epoch without exchange", empty=True
        ),
    }
)
TURNS = Schema(
    {
        "input": text("input that is changed alone", head="input"),
        "key": text("key of the input, or the first of its keys"),
        "command": text("command that plans with that value"),
        "now": amount(
            "current value of the input, in SI units; for the step time, s of forward and backward"
            " of a batch"
        ),
        "value": amount(
            "value beyond which another strategy is the cheapest, in SI units"
        ),
        "still": amount("last value before it at which runs show no change"),
        "changed": amount("first value beyond it at which runs show another choice"),
        "shown": text("the value, in the unit of the scenario", head="from"),
        "before": text("cheapest strategy now"),
        "after": text("cheapest strategy beyond the value"),
        "factor": amount("value over the current value"),
    },
    key=("input", "value"),
    newer={"still": "now", "changed": "value"},
)
STORED = {"strategies": STRATEGIES, "probes": PROBES, "turns": TURNS}


def find_chosen_row(strategies: pd.DataFrame) -> dict[Any, Any] | None:
    """Return the row of the chosen strategy; None if no strategy is chosen."""
    rows: list[dict[Any, Any]] = strategies[strategies["chosen"]].to_dict("records")
    return rows[0] if rows else None
