"""Tables of an audit, column by column."""

from __future__ import annotations

from simshuffle.studies.loader.resume_tables import (
    BEGINS_AGAIN,
    GOES_ON,
    HANGS,
    REFUSES,
    RESUMES,
)
from simshuffle.study.schema import Schema, amount, count, text

LATER_COLUMNS = {
    "lost_later": count(
        "samples that later epochs miss, and would have without the crash",
        empty=True,
        head="lost\nlater",
    ),
    "twice_later": count(
        "rows of later epochs that repeat a sample of their epoch, beyond those without the crash",
        empty=True,
        head="twice\nlater",
    ),
    "second": text(
        "where the resumed run was killed again, as EPOCH:STEP; steps count since the run went on"
        " or"
        " the epoch began; empty without a second kill"
    ),
    "second_outcome": text("outcome of the worst second kill; empty without one"),
    "second_lost": count(
        "samples lost in the epoch that was broken off twice, and in later epochs",
        empty=True,
        head="lost\n2nd",
    ),
    "second_twice": count(
        "samples that come more than once in these epochs",
        empty=True,
        head="twice\n2nd",
    ),
}
"""Columns on the epochs after the broken one, and on a second crash."""
AUDITED = Schema({**RESUMES.columns, **LATER_COLUMNS}, key=RESUMES.key)
COUNT_COLUMNS = (
    "trained",
    "rest",
    "lost",
    "repeated",
    "twice",
    "twice_whole",
    "never",
    "continues",
)
POINTS = Schema(
    {
        "change": RESUMES.columns["change"],
        "epoch": count("epoch in which the loader was killed, from 0"),
        "step": count("step of that epoch after which the state was saved", 1),
        "further": count("batches between the saved state and the kill"),
        "outcome": RESUMES.columns["outcome"],
        **{name: RESUMES.columns[name] for name in COUNT_COLUMNS},
        **LATER_COLUMNS,
        "says": text("error of a loader that does not go on; else empty"),
    },
    key=("change", "epoch", "step", "further"),
)
_SECONDS = ".3f"
COSTS = Schema(
    {
        "change": RESUMES.columns["change"],
        "state_nbytes": count(
            "bytes of the largest saved state of a rank, pickled; the largest of all points",
            empty=True,
            head="state of\na rank",
            look="bytes",
        ),
        "made_s": amount(
            "s of make(run) on the slowest rank; the median of all points",
            empty=True,
            head="s to\nmake",
            look=_SECONDS,
        ),
        "made_first_s": amount(
            "s of make(run) and the first batch",
            empty=True,
            head="s to 1st\nbatch",
            look=_SECONDS,
        ),
        "resumed_s": amount(
            "s of resume(run, states)", empty=True, head="s to\nresume", look=_SECONDS
        ),
        "resumed_first_s": amount(
            "s of resume(run, states) and the first batch",
            empty=True,
            head="s to 1st\nbatch",
            look=_SECONDS,
        ),
    },
    key=("change",),
)
SCHEMAS = {"resumes": AUDITED, "points": POINTS, "costs": COSTS}
FILES = tuple(f"{name}.csv" for name in SCHEMAS)
SHOWN_COLUMNS = [
    "change",
    "outcome",
    "trained",
    "rest",
    "lost",
    "repeated",
    "twice",
    "never",
    "continues",
]
LATER_COUNTS = ["lost_later", "twice_later", "second_lost", "second_twice"]
POINT_COLUMNS = [
    "change",
    "epoch",
    "step",
    "outcome",
    "rest",
    "lost",
    "repeated",
    "twice",
    "never",
]
OUTCOMES_BY_BADNESS = [GOES_ON, BEGINS_AGAIN, REFUSES, HANGS]
"""Outcomes, the worst one last."""
