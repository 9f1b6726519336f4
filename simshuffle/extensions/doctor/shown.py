"""What is shown of a training beside its diagnosis: where a batch's time goes, what was tried, as
tables and as a figure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from simshuffle.extensions.doctor.diagnosis import Diagnosis, Totals
from simshuffle.extensions.doctor.trying import TrialOutcome
from simshuffle.report.chart import Axis, Chart, Look, Mark, Panel, in_rows, rule, stack_rows
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
        "remedy": text("that the script was run with"),
        "predicted": real("share of a batch's time", empty=True, look=_SAVED),
        "predicted_interval": text("of 90 %", head="(90 %)"),
        "measured": real("share of a batch's time", empty=True, look=_SAVED),
        "measured_interval": text("of 90 %", head="(90 %)"),
        "within": text("whether both intervals have a part in common", head="as predicted"),
    }
)
ROWS = 6
"""Remedies that a figure shows."""
INK = "#000000"
PREDICTED, MEASURED = Look("predicted", "#BBBBBB"), Look("measured", INK, "o", size=3.5)
WHISKER = Look(colour="#555555", size=2)
NAME = 24  # letters of a line of a remedy's name
CAPTION = (
    "Where the time of a batch goes, and what remedies save of it; whiskers are 90 % intervals."
)


def batch_rows(loop: Totals) -> pd.DataFrame:
    """Where the time of a batch goes: the wait, the known parts of the step, and its rest. What
    these are longer than the step is the allreduce, which is a part of the backward pass, too."""
    rest = loop.step_s - sum(loop.of_steps.values())
    steps = dict(loop.of_steps)
    if "backward" in steps:
        steps["backward"] = max(steps["backward"] + min(rest, 0.0), 0.0)
    rows = [
        (name, seconds / loop.batches, seconds / loop.seconds)
        for name, seconds in {WAITING: loop.waited_s, **steps, REST: rest}.items()
        if seconds > 0 or (name == WAITING and loop.waits_known)
    ]
    return BATCH.framed(rows)


def batch_table(loop: Totals) -> Table:
    """The same as a table."""
    title = f"Where a batch's {loop.batch_s:.3g} s go"
    return BATCH.listing(batch_rows(loop), title, list(BATCH.columns))


def tries_parts(tries: Sequence[TrialOutcome]) -> list[str | Table]:
    """What a terminal shows of what was tried; nothing if nothing was."""
    done = [of for of in tries if of.measured is not None]
    out: list[str | Table] = []
    if done:
        rows = [
            (
                of.name,
                of.predicted and of.predicted.share,
                of.predicted.interval if of.predicted else "",
                of.measured and of.measured.share,
                of.measured.interval if of.measured else "",
                "" if of.predicted is None else "yes" if of.within else "no",
            )
            for of in done
        ]
        title = "Saved of a batch's time, beside a run of the script as it is"
        out.append(TRIES.listing(TRIES.framed(rows), title, list(TRIES.columns)))
    return [*out, *(f"Not measured: {of.name}: {of.why}." for of in tries if of not in done)]


def doctor_chart(diagnosis: Diagnosis, tries: Sequence[TrialOutcome]) -> Chart:
    """Where the time of a batch goes; below, what remedies save, and what they did when tried."""
    parts = batch_rows(diagnosis.loop)
    bar = stack_rows(parts.assign(y=0.0, look=parts["part"]), "y", "seconds", ("x", "x2"))
    looks = {
        name: Look(name, colour)
        for name, colour in zip(parts["part"], (BRIGHT[1], BRIGHT[0], *BRIGHT[2:]), strict=False)
    }
    batch = Panel([Mark("bar", bar)], Axis("time of a batch (s)"), in_rows([""]))
    saved = _saved(diagnosis, tries)
    panels = [batch]
    if not saved.empty:
        known, done = saved[saved["share"].notna()], saved[saved["measured"].notna()]
        marks = [
            rule(Look(colour="#555555", width=0.5), x=0.0),
            Mark("bar", known.assign(x=0.0, up=known["y"] - 0.15), y="up", x2="share",
                 look=PREDICTED, thick=0.36),
            Mark("interval", known.assign(up=known["y"] - 0.15), x="low", y="up", x2="high",
                 look=WHISKER),
            Mark("interval", done.assign(down=done["y"] + 0.2), x="from", y="down", x2="to",
                 look=Look(colour=INK, size=2)),
            Mark("point", done.assign(down=done["y"] + 0.2), x="measured", y="down",
                 look=MEASURED),
        ]  # fmt: skip
        names = [textwrap.fill(name, NAME, max_lines=2) for name in saved["name"]]
        panels.append(
            Panel(marks, Axis("saved (%)"), in_rows(names, small=True), weight=len(names))
        )
    return Chart(panels, 0.9 + 0.36 * len(saved), looks, CAPTION)


def _saved(diagnosis: Diagnosis, tries: Sequence[TrialOutcome]) -> pd.DataFrame:
    """What remedies save, in %, those that were tried first: y, name, share, low, high, measured,
    from, to."""
    found: dict[str, dict[str, float]] = {}
    for of in tries:
        if of.measured is not None:
            share, low, high = of.measured
            found[of.name] = {"measured": share, "from": low, "to": high}
    for remedy in diagnosis.remedies:
        batch_s = diagnosis.loop.batch_s
        predicted = {
            "share": remedy.gain_s / batch_s,
            "low": remedy.low / batch_s,
            "high": remedy.high / batch_s,
        }
        found.setdefault(remedy.name, {}).update(predicted)
    columns = ["share", "low", "high", "measured", "from", "to"]
    table = 100.0 * pd.DataFrame(list(found.values()), columns=columns, dtype=float)
    return table.assign(name=list(found), y=[float(at) for at in range(len(found))]).head(ROWS)
