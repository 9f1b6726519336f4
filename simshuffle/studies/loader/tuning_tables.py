"""The tables of settings of loaders, and which of them is the answer."""

from __future__ import annotations

import pandas as pd

from simshuffle.plan.reading_bounds import RESOURCES
from simshuffle.study.schema import Schema, amount, count, flag, share, text

LOOP, UNEVEN = "loop", "uneven batches"
READING, DECODING = "worker reads", "worker decodes"
LOST = 0.001
"""So much of the time may be lost by waiting where it is said that nothing stalls."""
_RUN = text("name of the run")
SETTING = {
    "workers": count("workers of a rank, each loading whole batches", 1),
    "threads": count("of a worker", 1),
    "prefetch": count("batches that a rank has asked for ahead, workers x prefetch_factor", 1),
}
_ANSWER = {
    "samples_per_s": amount("samples that all ranks train on in a second", head="samples/s"),
    "waiting": share(
        "share of the time in which loops wait for batches, after the start of an epoch",
        look=".2gpercent",
    ),
    "stall_every": amount(
        "steps from one stall to the next, mean: waits of more than a twentieth of a step; empty"
        " without",
        empty=True,
        head="steps from\nstall to stall",
    ),
    "stall_s": amount("s of the longest of them; 0 without", head="longest\n(s)", look=".2g or -"),
    "first_s": amount("s until the first batch of an epoch", head="first\nbatch (s)"),
    "memory_nbytes": amount(
        "bytes of the batches that the ranks of a host hold at most", head="memory\nof a host",
        look="bytes",
    ),
    "binds": text(
        "what keeps the loops from being faster: 'loop' is they themselves, 'worker reads' and"
        " 'worker decodes' what their workers do longest, each alone",
        *(LOOP, UNEVEN, READING, DECODING),
        *RESOURCES,
    ),
}  # fmt: skip
SETTINGS = Schema(
    {
        "run": _RUN,
        **SETTING,
        "own": flag("whether the scenario says so itself"),
        "needed_per_s": amount("samples that loops train on in a second if they never wait"),
        **_ANSWER,
        "host_nbytes": amount("bytes of a host's memory"),
        "step_s": amount("s of a step that never waits"),
        "read_s": amount("s in which a worker alone reads a batch, mean"),
        "decode_s": amount("s in which it decodes one"),
        "resource": text("the resource that all share which takes longest for a batch", *RESOURCES),
        "resource_s": amount("s that it takes for a batch of every rank"),
    },
    key=("run", *SETTING),
)
ANSWERS = Schema(
    {
        "run": _RUN,
        "needed_per_s": amount(
            "samples that loops train on in a second if they never wait", head="needed\nper s"
        ),
        **SETTING,
        **_ANSWER,
    },
    key=("run",),
)
"""The derived table ``answers``."""


def answers(settings: pd.DataFrame) -> pd.DataFrame:
    """For each run the setting with fewest threads, then workers, then batches ahead, that wastes
    nothing: it stalls nothing, or brings within `LOST` as much as the best.

    Args:
        settings: table `settings`.
    """
    order = ["threads", "workers", "prefetch"]
    rows = []
    for _, of in settings.groupby("run", sort=False):
        enough = of["samples_per_s"].max() * (1 - LOST)
        rows.append(of[of["samples_per_s"] >= enough].sort_values(order).iloc[0])
    return ANSWERS.framed([row.to_dict() for row in rows])
