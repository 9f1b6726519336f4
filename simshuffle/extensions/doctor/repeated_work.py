"""Find work that is done anew for every sample: files that are opened, connections that
are made and texts that are parsed again and again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simshuffle.extensions.doctor.loop import FETCH_PARTS, RecordedLoop
from simshuffle.extensions.doctor.places import name_place
from simshuffle.extensions.doctor.recorder.known_calls import HANDLE
from simshuffle.extensions.doctor.without_cause import SPECIAL, LoopWithoutCause
from simshuffle.extensions.doctor.workers import reduce_computing
from simshuffle.spec.arrays import Floats

ANEW = "done anew for every sample"
"""Name of the cause."""
MIN_CALLS = 20
"""Calls for the same from which a line does work anew (chosen)."""
MOSTLY = 0.5
"""Share of its calls that are for the same, from which a line does work anew (chosen)."""
FIRST_USE = 0.75
"""Share of its function's other time that the first use of a new handle is taken to be
(chosen: a database reads its tables' names at the first query, and more at its end).
"""


@dataclass(frozen=True)
class RepeatedWork:
    """Work that is done anew for every sample, and the line that does the most."""

    function: str  # that is called
    caller: str  # function that calls it
    file: str  # path of its file
    line: int
    saved_s: Floats  # (B, M) s of a batch that doing it once saves
    measured_share: (
        float  # of ``saved_s`` that was timed; the rest is the first use of handles
    )
    calls_a_sample: float
    call_s: float  # mean s of a call

    @property
    def where(self) -> str:
        """Call, function, file without its folder, and line."""
        return f"`{self.function}` in {name_place(self.file, self.caller, self.line)}"


def repeated_work(loop: RecordedLoop) -> RepeatedWork | None:
    """Return the work that a loop does anew for every sample; None if it does none.

    The first use of a handle costs time, too, which was not timed by itself: it is
    `FIRST_USE` of what the stacks show of the function that makes the handle, beyond
    the calls in it that were timed.
    """
    anew = [
        call
        for call in loop.known_calls
        if call["anew"] >= max(MIN_CALLS, MOSTLY * call["calls"])
    ]
    timed_s = loop.sum_of("repeat")
    if not anew or not timed_s.any():
        return None
    extra_s = {id(call): _first_use_share(loop, call) for call in anew}
    part_s = sum((loop.sum_of(part) for part in FETCH_PARTS), np.zeros(timed_s.shape))
    handle_share = max(extra_s.values())
    saved_s = np.minimum(timed_s + FIRST_USE * handle_share * part_s, part_s)
    total_s = sum(call["anew_s"] for call in anew)
    main = max(
        anew,
        key=lambda call: (
            call["anew_s"] / max(total_s, 1e-300)
            + (extra_s[id(call)] > 0) * handle_share
        ),
    )
    samples = loop.sum_of("fetch", "count").sum()
    calls = loop.sum_of("repeat", "count").sum() * main["anew"]
    return RepeatedWork(
        function=main["function"],
        caller=main["caller"],
        file=main["file"],
        line=main["line"],
        saved_s=saved_s,
        measured_share=float(min(timed_s.sum() / max(saved_s.sum(), 1e-300), 1.0)),
        calls_a_sample=float(
            calls / max(samples * sum(call["anew"] for call in anew), 1e-300)
        ),
        call_s=main["anew_s"] / main["anew"],
    )


def _reads_entire_files(loop: RecordedLoop) -> bool:
    """Return whether files are read to their ends, as a script that parses them does."""
    opened = float(loop.sum_of("open", "count").sum())
    expected_nbytes = opened * (loop.mean_file_nbytes or np.inf)
    return bool(loop.sum_of("read", "nbytes").sum() >= MOSTLY * expected_nbytes)


def _first_use_share(loop: RecordedLoop, call: Mapping[str, Any]) -> float:
    """Return the share of the fetches that a handle's function takes beyond the known
    calls in it; 0 if the call gives no handle, or takes most of its function itself.
    """
    if call["kind"] != HANDLE or (
        call["function"] == "open" and not _reads_entire_files(loop)
    ):
        return 0.0
    sightings = [
        sighting
        for sighting in loop.code_places or ()
        if sighting["operation"] in {*FETCH_PARTS, "fetch"}
    ]
    total = sum(sighting["count"] for sighting in sightings)
    in_function = sum(
        sighting["count"]
        for sighting in sightings
        if (sighting["file"], sighting["function"]) == (call["file"], call["caller"])
    )
    if not total:
        return 0.0
    fetch_s = float(sum(loop.sum_of(part).sum() for part in FETCH_PARTS))
    # calls were timed in some fetches alone: their share of what these took
    timed_anew_s = sum(line["anew_s"] for line in loop.known_calls)
    scale = float(loop.sum_of("repeat").sum()) / max(timed_anew_s, 1e-300)
    called_s = scale * sum(
        line["seconds"]
        for line in loop.known_calls
        if (line["file"], line["caller"]) == (call["file"], call["caller"])
    )
    function_share = in_function / total
    called_share = called_s / max(fetch_s, 1e-300)
    return max(function_share - called_share, 0.0) if called_share < MOSTLY else 0.0


def repeated_work_causes(
    loop: RecordedLoop, work: RepeatedWork | None
) -> Iterator[LoopWithoutCause]:
    """Yield the loop that does its `repeated_work` once, if it repeats any."""
    if work is None:
        return
    share = work.saved_s.sum() / max(loop.times.load_s.sum(), 1e-300)
    how_often = (
        "for every sample"
        if work.calls_a_sample >= MOSTLY
        else f"{work.calls_a_sample:.2g} times a sample"
    )
    sentence = (
        f"{100 * min(share, 1.0):.0f} % of what workers do is {work.where}, called anew"
        f" {how_often}: {work.call_s:.2g} s each."
    )
    without = reduce_computing(loop, work.saved_s)
    yield LoopWithoutCause(ANEW, without, sentence, 1.4 * SPECIAL)
