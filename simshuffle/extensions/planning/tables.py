"""The tables of a plan: their columns, and what they mean."""

from __future__ import annotations

from typing import Any

import pandas as pd

from simshuffle.study.schema import Schema, amount, count, flag, real, share, text

_STRATEGY = text("strategy, with Q or what it reads from", head="strategy")
STRATEGIES = Schema(
    {
        "strategy": _STRATEGY,
        "exchange": text("as workload.exchange has it"),
        "exchange_fraction": share("Q; empty under global shuffle", empty=True),
        "kept_nbytes": amount(
            "bytes that a host keeps", head="a host\nkeeps", look="bytes"
        ),
        "capacity_nbytes": amount(
            "bytes that it has room for", head="of", look="bytes"
        ),
        "fits": flag("whether there is room"),
        "why": text("why it was not simulated; empty if it was"),
        "epoch_s": amount("s of a warm epoch", empty=True, head="epoch s", look=".4g"),
        "io_share": share(
            "share of it under I/O: a rank's own, and waiting for others that are at it",
            empty=True,
            head="I/O",
            look=".2gpercent",
        ),
        "exchange_share": share(
            "the same of exchanging samples",
            empty=True,
            head="exchange",
            look=".2gpercent",
        ),
        "staging_s": amount(
            "s of copying samples to the hosts before the first", empty=True
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
            "share of the time that is useful then", empty=True, look=".3gpercent"
        ),
        "spares": count(
            "spare hosts with which waiting for hosts is at most 1 % of the time; empty if those of"
            " the machine are not enough",
            empty=True,
        ),
        "accuracy": share("best of its curve; empty without", empty=True),
        "hours": amount("hours of the training", empty=True, head="hours", look=".4g"),
        "time_cost": amount("of the host-hours of the training", empty=True),
        "storage_cost": amount("of SSDs and file system, by their prices", empty=True),
        "cost": amount(
            "of both; in host-hours where nothing has a price",
            empty=True,
            head="cost",
            look=".4g",
        ),
        "command": text("what repeats the run; the last epoch is the warm one"),
        "month": text("what repeats its months; empty without failures"),
        "chosen": flag("the cheapest that reaches the target within the budget"),
        "files_per_s": amount(
            "files opened in a second by the smallest file system of which I/O takes no more than"
            " io_share of an epoch; empty where it is not read from, or none does",
            empty=True,
            head="smallest\nfiles/s",
            look=".3g",
        ),
        "bytes_per_s": amount(
            "bytes/s of the same",
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
        "command": text("what repeats the run"),
        "files_per_s": amount("of the file system", empty=True),
        "bytes_per_s": amount("of the file system", empty=True),
        "exchange_fraction": share("Q", empty=True),
        "epoch_s": amount("s of the warm epoch"),
        "io_share": share("share of it under I/O", empty=True),
        "added": real(
            "share of the epoch without exchange that it is longer", empty=True
        ),
    }
)
TURNS = Schema(
    {
        "input": text("what is moved alone", head="input"),
        "key": text("its key, or the first of them"),
        "command": text("what plans it with that value"),
        "now": amount(
            "the value of the input, in SI units; of the step time s of a batch, forward and"
            " backward"
        ),
        "value": amount(
            "the value from which on another strategy is the cheapest, in SI units"
        ),
        "still": amount(
            "the last value before it of which runs say that it changes nothing"
        ),
        "changed": amount(
            "the first value beyond it of which runs say that it changes the choice"
        ),
        "shown": text("the value in the unit in which it was written", head="from"),
        "before": text("the cheapest now"),
        "after": text("the cheapest then"),
        "factor": amount("over the value now"),
    },
    key=("input", "value"),
    newer={"still": "now", "changed": "value"},
)
STORED = {"strategies": STRATEGIES, "probes": PROBES, "turns": TURNS}


def find_chosen_row(strategies: pd.DataFrame) -> dict[Any, Any] | None:
    """Return the row of the chosen strategy; None if no strategy is chosen."""
    rows: list[dict[Any, Any]] = strategies[strategies["chosen"]].to_dict("records")
    return rows[0] if rows else None
