"""The tables of a month, and what follows from them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from simshuffle.extensions.planning.month.goodput import CATEGORIES
from simshuffle.extensions.planning.month.hosts import PHASES
from simshuffle.study.schema import Schema, amount, count, share, text

MIN_SECONDS_IN_MINUTES = 120.0  # s from which on a time is told in minutes, and so on


def format_duration(seconds: float) -> str:
    """Format a time for people: '42 s', '12 min', '5.2 h', '3.1 d'.

    The number has three digits. The unit is the largest that the time holds twice;
    below 2 min it is s.
    """
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= max(MIN_SECONDS_IN_MINUTES, 2 * size):
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


MEANINGS = {
    "training": "training that counts",
    "slower": "slower by fewer hosts",
    "stalls": "checkpoint stalls",
    "lost": "lost work",
    "detection": "noticing failures",
    "waiting": "waiting for hosts",
    "restart": "restarts",
    "restore": "reading checkpoints",
    "reread": "reading shards again",
}
"""What the categories are called."""
WHICH = {
    "grid": "tried",
    "used": "used",
    "best": "best of the search",
    "daly": "Daly's",
    "young": "Young's",
}
"""What the periods are called."""
RUN = text("name of the run", head="run")
DAYS = Schema(
    {
        "run": RUN,
        "seed": count("seed of the failures that are drawn"),
        "days": amount("days of the training; the next columns add up to them"),
        **{
            f"{name}_days": amount(f"days of {meaning}")
            for name, meaning in MEANINGS.items()
        },
        "goodput": share("training that counts over all days"),
        "interruptions": count("failures that interrupt training"),
        "epochs": amount("epochs that are trained"),
    },
    key=("run", "seed"),
)
PERIODS = Schema(
    {
        "run": RUN,
        "which": text("why this period is tried", *WHICH, head="period"),
        "period_s": amount(
            "s of training between two checkpoints", head="s", look=",.0f"
        ),
        "goodput": share("mean over seeds", look=".2%"),
        "low": share("5 % of the seeds have less", head="5 %", look=".2%"),
        "high": share("5 % of the seeds have more", head="95 %", look=".2%"),
        "formula": share(
            "goodput by Daly's formula, with exponential failures and hosts at once",
            head="formula",
            look=".2%",
        ),
    },
    key=("run", "which", "period_s"),
)
CAUSES = Schema(
    {
        "run": RUN,
        "cause": text("cause of a failure", head="cause"),
        "interruptions": amount(
            "interruptions in a month, mean over seeds", look=".1f"
        ),
        "days": amount(
            "days that they cost, mean over seeds: lost work, and time until training goes on"
        ),
    },
    key=("run", "cause"),
)
INPUTS = Schema(
    {
        "run": RUN,
        "hosts": count("hosts that the ranks fill"),
        "spares": count("spare hosts"),
        "policy": text("what is done when a host fails"),
        "between_s": amount(
            "s between two failures of the job's hosts; empty where none fails",
            empty=True,
            head="between failures",
            look=format_duration,
        ),
        "period_s": amount(
            "s of training between two checkpoints", head="period", look=format_duration
        ),
        "save_s": amount(
            "s from the begin of a save until no failure can undo it",
            head="save",
            look=format_duration,
        ),
        "stall_s": amount(
            "s that training stands still at each save",
            head="stall",
            look=format_duration,
        ),
        "detect_s": amount("s until a failure is noticed"),
        "restart_s": amount("s to start all processes"),
        "restore_s": amount(
            "s to read the last checkpoint", head="restore", look=format_duration
        ),
        "reread_s": amount(
            "s for a new host to read its shard",
            head="shard again",
            look=format_duration,
        ),
        "loader": text(
            "law by which the loader resumes (`recovery.resume`); empty without one"
        ),
        "repeated": share(
            "share of the data set that comes again after an interruption, mean; empty without"
            " loader",
            empty=True,
        ),
        "lost": share(
            "share of the data set that its epoch never has, mean; empty without loader",
            empty=True,
        ),
        "refused": share(
            "share of moments at which the loader does not go on; empty without loader",
            empty=True,
        ),
        "first_s": amount("s of the first epoch and the staging before it"),
        "steady_s": amount(
            "s of the epoch that repeats", head="epoch", look=format_duration
        ),
        "reads_share": share(
            "share of the epoch that repeats in which ranks wait for samples",
            head="waits for samples",
            look=".1%",
        ),
        "simulated": count("epochs that were simulated until two agreed"),
    },
    key=("run",),
)
PARTS = Schema(
    {
        "run": RUN,
        "part": text("what the days are spent on", *MEANINGS.values(), head="days of"),
        "days": amount("mean over seeds", look=".3g"),
        "share": share("share of all days", look=".2%"),
        "low": amount("5 % of the seeds have fewer days", head="5 %", look=".3g"),
        "high": amount("5 % of the seeds have more days", head="95 %", look=".3g"),
    },
    key=("run", "part"),
)
assert set(MEANINGS) == set(CATEGORIES) and set(PHASES) < set(CATEGORIES)  # noqa: S101


def days_by_category(days: pd.DataFrame) -> pd.DataFrame:
    """Return the mean days that each run spends on each category: columns `PARTS`.

    Means and the 5 % and 95 % quantiles (``low``, ``high``) are over the seeds. A share
    is that of the mean days of a run. Every run has a row for each of `MEANINGS`, also
    for those of 0 days.
    """
    rows = []
    for run, run_days in days.groupby("run", sort=False):
        for name, meaning in MEANINGS.items():
            values = run_days[f"{name}_days"]
            low, high = np.quantile(values, (0.05, 0.95)).tolist()
            mean = float(values.mean())
            share_of = mean / float(run_days["days"].mean())
            row = {"run": run, "part": meaning, "days": mean, "share": share_of}
            rows.append({**row, "low": low, "high": high})
    return PARTS.framed(rows)
