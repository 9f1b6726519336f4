"""Write a diagnosis in at most twenty lines of a terminal."""

from __future__ import annotations

import textwrap

from simshuffle.extensions.doctor.diagnosis import Diagnosis
from simshuffle.extensions.doctor.ranking import Remedy
from simshuffle.extensions.doctor.shown import batch_rows

MAX_LINES = 20
"""Lines of a diagnosis at most."""
WIDTH = 96
"""Letters of a line at most."""
MAX_CAUSES, MAX_REMEDIES = 3, 3


def brief_lines(diagnosis: Diagnosis) -> list[str]:
    """Return the lines that a terminal shows of a diagnosis, at most `MAX_LINES`: the
    causes, what helps, where the time of a batch goes, notes as far as there is room,
    and the verdict.
    """
    verdict = [
        line
        for sentence in diagnosis.verdict_parts.lines()
        for line in textwrap.wrap(sentence, WIDTH)
    ]
    lines: list[str] = []
    for index, cause in enumerate(diagnosis.causes[:MAX_CAUSES]):
        head = f"{index + 1}. {cause.name}: {100 * cause.share:.0f} % of the loop"
        share_after = f"{100 * cause.share_after:.0f} %"
        comment = f", {share_after} once {diagnosis.causes[0].name} is mended"
        lines.append(head + (comment if index else f"; {cause.certainty}"))
        if index:
            lines += _indent(textwrap.shorten(cause.sentence, 2 * WIDTH - 10))
    if diagnosis.remedies:
        lines.append("What helps, and how much of a batch it saves (90 % interval):")
        for remedy in diagnosis.remedies[:MAX_REMEDIES]:
            lines += _indent(_remedy_line(remedy, diagnosis.loop.batch_s))
    lines += textwrap.wrap(_batch_line(diagnosis), WIDTH)

    notes: list[str] = []
    for note in diagnosis.notes:
        wrapped = textwrap.wrap(note, WIDTH)
        if len(lines) + len(notes) + len(wrapped) + len(verdict) < MAX_LINES:
            notes += wrapped
    return [*lines[: MAX_LINES - len(verdict)], *notes, *verdict]


def _indent(text: str) -> list[str]:
    """Return the lines of a text, indented."""
    return textwrap.wrap(text, WIDTH, initial_indent="   ", subsequent_indent="     ")


def _remedy_line(remedy: Remedy, batch_s: float) -> str:
    """Return the line of a remedy: name, gain with its interval, cost."""
    low, high = (100 * seconds / batch_s for seconds in (remedy.low, remedy.high))
    gain = f"{100 * remedy.share:.0f} % ({max(low, 0):.0f} to {high:.0f})"
    return f"{remedy.name}: {gain}; {remedy.cost}"


def _batch_line(diagnosis: Diagnosis) -> str:
    """Return the line of where the time of a batch goes, the longest part first."""
    rows = batch_rows(diagnosis.loop).sort_values("share", ascending=False)
    parts = [
        f"{part} {100 * share:.0f} %"
        for part, share in zip(rows["part"], rows["share"], strict=True)
        if share >= 0.005
    ]
    return f"A batch takes {1e3 * diagnosis.loop.batch_s:.3g} ms: {', '.join(parts)}."
