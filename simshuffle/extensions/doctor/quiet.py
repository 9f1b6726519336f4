"""A loop as it would have been if other programs had left it the cores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simshuffle.extensions.doctor.loop import RecordedLoop
from simshuffle.extensions.doctor.recorder.rows import CODES
from simshuffle.spec.arrays import Floats

NOTICED = 0.1
"""Share of the time in which threads could compute that they wait for a core, from which it is
said (chosen)."""
QUICK = 0.1
"""Share of the collectives that are taken to have waited for no core (chosen)."""
COMPUTED, WAITED = ("decode", "transform", "collate"), ("open", "read", "lock")
"""What a worker does mostly by computing, and mostly by waiting."""


def quieted(loop: RecordedLoop) -> RecordedLoop:
    """The loop without what its threads waited for cores that others had. What remains of that,
    they took from one another: where they are more than the cores, in proportion to what they and
    others computed.

    How long each operation waited for a core is not known, only a batch: computing did first."""
    queued = {name: np.nan_to_num(loop.of(name, "queued_s")) for name in ("wait", "step", "fetch")}
    computed = {name: np.nan_to_num(loop.of(name, "cpu_s")) for name in queued}
    if loop.way.met:  # who waits for a core makes the others wait, which is seen of some batches
        unseen = ~loop.met_seen
        queued["step"][unseen] = queued["step"][unseen].min(axis=1, keepdims=True)
    threads = {"wait": 1, "step": loop.threads, "fetch": 1 if loop.way.workers else 0}
    wanted = sum(n * (queued[name] + computed[name]).sum() for name, n in threads.items())
    late = sum(n * queued[name].sum() for name, n in threads.items())
    if loop.cores is None or not late:
        return loop
    others = 1.0
    if loop.threads + loop.way.workers > loop.cores:
        own = (wanted - late) / loop.measured.sum()
        others = (loop.others or 0.0) / ((loop.others or 0.0) + own)
    seconds = loop.sums["seconds"].copy()
    _take(seconds, queued["fetch"] * others)
    for name in ("wait", "step", "fetch"):
        seconds[CODES[name]] -= queued[name] * others
    seconds = np.maximum(seconds, 0.0)
    late_sums = np.zeros(loop.way.step.shape)
    if loop.way.met:  # the quickest sums show what they take where nobody waits for a core
        sums_s = seconds[CODES["allreduce"]]
        shortest = sums_s.min(axis=1, keepdims=True)
        late_sums += (
            np.maximum(shortest - np.quantile(shortest[loop.met_seen], QUICK), 0.0) * others
        )
        sums_s -= late_sums
    # a worker that is to answer waits for cores as others do
    way, kept = loop.way, 1 - others * late / wanted
    own = np.minimum(way.handover, computed["wait"])
    fetch = np.minimum(loop.of("fetch"), way.load)
    load = np.maximum(fetch - queued["fetch"] * others, 0.0) + (way.load - fetch) * kept
    quiet = replace(
        way,
        load=load,
        step=np.maximum(way.step - queued["step"] * others - late_sums, 0.0),
        sending=way.sending * kept,
        handover=own + np.maximum(way.handover - own - queued["wait"] * others, 0.0) * kept,
        more=way.more * kept,
    )
    notes = loop.notes
    if others * late > NOTICED * wanted:
        notes = [
            *notes,
            f"Other programs had the cores: the loop's threads waited for one in "
            f"{100 * others * late / wanted:.0f} % of the time in which they could compute. "
            "Shares are those that it would lose without them; a quiet machine would tell more.",
        ]
    sums = dict(loop.sums) | {"seconds": seconds, "queued_s": loop.sums["queued_s"] * (1 - others)}
    return replace(loop, sums=sums, way=quiet, late=queued["fetch"] * others, notes=notes)


def _take(seconds: Floats, late: Floats) -> None:
    """Take what workers waited for cores, (B, M), off the parts of their fetches."""
    for names in (COMPUTED, WAITED):
        codes = [CODES[name] for name in names]
        whole = seconds[codes].sum(axis=0)
        taken = np.minimum(late, whole)
        seconds[codes] *= 1 - taken / np.maximum(whole, 1e-300)
        late = late - taken
