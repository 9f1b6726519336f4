"""Show where a batch's time goes, and what remedies save, as tables and as a figure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from simshuffle.extensions.doctor.diagnosis import Diagnosis, Totals
from simshuffle.extensions.doctor.trying import TrialOutcome
from simshuffle.report.chart import (
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    in_rows,
    rule,
    stack_rows,
)
from simshuffle.report.style import BRIGHT
from simshuffle.study.schema import Schema, amount, real, share, text

if TYPE_CHECKING:
    from rich.table import Table

WAITING, REST = "waiting for data", "rest of the step"
BATCH = Schema(
    {
        "part": text("of a batch's time"),
        "seconds": amount("mean over batches and ranks", head="s a batch", look=".3g"),
        "share": share("of the batch", head="of the batch", look="percent"),
    }
)
_SAVED = ".1fpercent"
TRIES = Schema(
    {
        "remedy": text("with which the script was run"),
        "predicted": real("share of a batch's time", empty=True, look=_SAVED),
        "predicted_interval": text("of 90 %", head="(90 %)"),
        "measured": real("share of a batch's time", empty=True, look=_SAVED),
        "measured_interval": text("of 90 %", head="(90 %)"),
        "within": text("whether both intervals overlap", head="as predicted"),
    }
)
MAX_REMEDIES = 6
"""Remedies that a figure shows at most."""
INK = "#000000"
PREDICTED, MEASURED = Look("predicted", "#BBBBBB"), Look("measured", INK, "o", size=3.5)
WHISKER = Look(colour="#555555", size=2)
LINE_LENGTH = 24
"""Letters of a line of a remedy's name."""
CAPTION = (
    "Where the time of a batch goes, and what remedies save of"
    " it; whiskers are 90 % intervals."
)


def batch_rows(loop: Totals) -> pd.DataFrame:
    """Return where the time of a batch goes: the wait, and the known and unknown parts
    of the step, with the columns of `BATCH`.

    Parts of 0 s are left out, but a wait of 0 s only where waits are not known.

    Known parts longer than the step include the allreduce twice, because it is a part
    of the backward pass, too: the backward pass becomes shorter by that.
    """
    unknown_s = loop.step_s - sum(loop.of_steps.values())
    step_parts = dict(loop.of_steps)
    if "backward" in step_parts:
        step_parts["backward"] = max(step_parts["backward"] + min(unknown_s, 0.0), 0.0)
    rows = [
        (name, seconds / loop.batches, seconds / loop.seconds)
        for name, seconds in {
            WAITING: loop.waited_s,
            **step_parts,
            REST: unknown_s,
        }.items()
        if seconds > 0 or (name == WAITING and loop.waits_known)
    ]
    return BATCH.framed(rows)


def batch_table(loop: Totals) -> Table:
    """Return the table of where the time of a batch goes."""
    title = f"Where a batch's {loop.batch_s:.3g} s go"
    return BATCH.listing(batch_rows(loop), title, list(BATCH.columns))


def tries_parts(tries: Sequence[TrialOutcome]) -> list[str | Table]:
    """Return what a terminal shows of trials: a table of those measured, if there are
    any, and a sentence for each of the others.
    """
    measured = [outcome for outcome in tries if outcome.measured is not None]
    parts: list[str | Table] = []
    if measured:
        rows = [
            (
                outcome.name,
                outcome.predicted and outcome.predicted.share,
                outcome.predicted.interval if outcome.predicted else "",
                outcome.measured and outcome.measured.share,
                outcome.measured.interval if outcome.measured else "",
                "" if outcome.predicted is None else "yes" if outcome.within else "no",
            )
            for outcome in measured
        ]
        title = "Share of a batch's time saved, against a run of the script as it is"
        parts.append(TRIES.listing(TRIES.framed(rows), title, list(TRIES.columns)))
    failures = [outcome for outcome in tries if outcome.measured is None]
    return [
        *parts,
        *(outcome.conclusion for outcome in measured if outcome.conclusion),
        *(f"Not measured: {outcome.name}: {outcome.why}." for outcome in failures),
    ]


def doctor_chart(diagnosis: Diagnosis, tries: Sequence[TrialOutcome]) -> Chart:
    """Draw where the time of a batch goes, and what remedies are predicted and measured
    to save; the second panel only if there are any.
    """
    parts = batch_rows(diagnosis.loop)
    bar = stack_rows(
        parts.assign(y=0.0, look=parts["part"]), "y", "seconds", ("x", "x2")
    )
    looks = {
        name: Look(name, colour)
        for name, colour in zip(
            parts["part"], (BRIGHT[1], BRIGHT[0], *BRIGHT[2:]), strict=False
        )
    }
    batch = Panel([Mark("bar", bar)], Axis("time of a batch (s)"), in_rows([""]))
    saved = _savings(diagnosis, tries)
    panels = [batch]
    if not saved.empty:
        predicted = saved[saved["share"].notna()]
        measured = saved[saved["measured"].notna()]
        marks = [
            rule(Look(colour="#555555", width=0.5), x=0.0),
            Mark("bar", predicted.assign(x=0.0, up=predicted["y"] - 0.15), y="up", x2="share",
                 look=PREDICTED, thick=0.36),
            Mark("interval", predicted.assign(up=predicted["y"] - 0.15), x="low", y="up", x2="high",
                 look=WHISKER),
            Mark("interval", measured.assign(down=measured["y"] + 0.2), x="from", y="down", x2="to",
                 look=Look(colour=INK, size=2)),
            Mark("point", measured.assign(down=measured["y"] + 0.2), x="measured", y="down",
                 look=MEASURED),
        ]  # fmt: skip
        names = [
            textwrap.fill(name, LINE_LENGTH, max_lines=2) for name in saved["name"]
        ]
        panels.append(
            Panel(
                marks, Axis("saved (%)"), in_rows(names, small=True), weight=len(names)
            )
        )
    return Chart(panels, 0.9 + 0.36 * len(saved), looks, CAPTION)


def _savings(diagnosis: Diagnosis, tries: Sequence[TrialOutcome]) -> pd.DataFrame:
    """Return what remedies save, in % of a batch, at most `MAX_REMEDIES`: those that
    were measured come first.

    The columns are name, y (row of the figure), share, low, high (predicted), measured,
    from, to; nan where a remedy was not predicted or not measured.
    """
    savings: dict[str, dict[str, float]] = {}
    for outcome in tries:
        if outcome.measured is not None:
            share, low, high = outcome.measured
            savings[outcome.name] = {"measured": share, "from": low, "to": high}
    for remedy in diagnosis.remedies:
        batch_s = diagnosis.loop.batch_s
        predicted = {
            "share": remedy.gain_s / batch_s,
            "low": remedy.low / batch_s,
            "high": remedy.high / batch_s,
        }
        savings.setdefault(remedy.name, {}).update(predicted)
    columns = ["share", "low", "high", "measured", "from", "to"]
    table = 100.0 * pd.DataFrame(list(savings.values()), columns=columns, dtype=float)
    table = table.assign(
        name=list(savings), y=[float(row) for row in range(len(savings))]
    )
    return table.head(MAX_REMEDIES)
