"""Remove from a loop what its threads waited for cores that other programs had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from simshuffle.extensions.doctor.loop import RecordedLoop
from simshuffle.extensions.doctor.recorder.rows import CODES
from simshuffle.extensions.doctor.replay import LoopTimes
from simshuffle.spec.arrays import Floats

NOTICED = 0.1
"""Share of the time in which threads could compute that they wait for a core, from
which a note says so (chosen).
"""
QUICK = 0.1
"""Share of the collectives that are taken to have waited for no core (chosen)."""
COMPUTING_PARTS = ("decode", "transform", "collate")
"""Parts of a fetch in which a worker mostly computes."""
WAITING_PARTS = ("open", "read", "lock")
"""Parts of a fetch in which a worker mostly waits."""
TIMED_OPERATIONS = ("wait", "step", "fetch")
"""Operations whose waits for a core are recorded."""


@dataclass(frozen=True)
class CoreWaits:
    """Waits of a loop's threads for cores."""

    # (B, M) s that each of `TIMED_OPERATIONS` waited for a core; 0 if not known
    queued_s: Mapping[str, Floats]
    # (B, M) s of a core that each took; 0 if not known
    computed_s: Mapping[str, Floats]
    total_s: float  # s that all threads of all ranks waited
    wanted_s: float  # s in which all threads of all ranks computed or waited for a core
    share_of_others: float  # of the waits, that other programs caused


def remove_core_waits(loop: RecordedLoop) -> RecordedLoop:
    """Return the loop without the waits of its threads for cores that other programs
    had.

    A loop that never waited, or whose cores are not known, is returned as it is. Where
    the loop has more threads than cores, its threads also wait for one another.
    Then waits count in proportion to what the loop and other programs computed. How
    long each part of a fetch waited for a core is not known, only the whole fetch:
    waits go off the computing parts first. Collectives lose what they ended late
    because a rank had no core. ``core_wait_s`` of the loop is what its fetches lose. A
    note is added if the waits are more than `NOTICED` of the time in which threads
    could compute.
    """
    waits = _core_waits(loop)
    if loop.cores is None or not waits.total_s:
        return loop
    share = waits.share_of_others
    removed_s = {name: queued_s * share for name, queued_s in waits.queued_s.items()}

    seconds = loop.sums["seconds"].copy()
    _shorten_fetch_parts(seconds, removed_s["fetch"])
    for operation in TIMED_OPERATIONS:
        seconds[CODES[operation]] -= removed_s[operation]
    seconds = np.maximum(seconds, 0.0)
    late_collective_s = np.zeros(loop.times.step_s.shape)
    if loop.times.ranks_meet:
        # the quickest collectives show what these take where nobody waits for a core
        collective_s = seconds[CODES["allreduce"]]
        shortest_s = collective_s.min(axis=1, keepdims=True)
        quick_s = np.quantile(shortest_s[loop.meetings_recorded], QUICK)
        late_collective_s += np.maximum(shortest_s - quick_s, 0.0) * share
        collective_s -= late_collective_s

    notes = loop.notes
    if share * waits.total_s > NOTICED * waits.wanted_s:
        percent = 100 * share * waits.total_s / waits.wanted_s
        notes = [
            *notes,
            f"Other programs had the cores: the loop's threads waited for a core in "
            f"{percent:.0f} % of the time in which they could compute. Shares are of the "
            "loop without these waits; a record of a quiet machine would tell more.",
        ]
    queued_s = loop.sums["queued_s"] * (1 - share)
    return replace(
        loop,
        sums=dict(loop.sums) | {"seconds": seconds, "queued_s": queued_s},
        times=_shorten_times(loop, waits, removed_s, late_collective_s),
        core_wait_s=removed_s["fetch"],
        notes=notes,
    )


def _core_waits(loop: RecordedLoop) -> CoreWaits:
    """Return the waits for cores, and the share that other programs caused: all, unless
    threads and workers outnumber the cores. A step counts once for each of its threads.

    Where ranks meet and a collective was not recorded, a step's wait is that of the
    rank that waited least.
    """
    queued_s = {
        name: np.nan_to_num(loop.sum_of(name, "queued_s")) for name in TIMED_OPERATIONS
    }
    computed_s = {
        name: np.nan_to_num(loop.sum_of(name, "cpu_s")) for name in TIMED_OPERATIONS
    }
    if loop.times.ranks_meet:
        # a rank that waits for a core makes the others wait, which only some batches show
        unknown = ~loop.meetings_recorded
        queued_s["step"][unknown] = queued_s["step"][unknown].min(axis=1, keepdims=True)
    threads = {"wait": 1, "step": loop.threads, "fetch": 1 if loop.times.workers else 0}
    wanted_s = sum(
        count * (queued_s[name] + computed_s[name]).sum()
        for name, count in threads.items()
    )
    total_s = sum(count * queued_s[name].sum() for name, count in threads.items())
    share_of_others = 1.0
    if (
        loop.cores is not None
        and total_s
        and loop.threads + loop.times.workers > loop.cores
    ):
        own_cores = (wanted_s - total_s) / loop.measured_batch_s.sum()
        cores_of_others = loop.cores_of_others or 0.0
        share_of_others = cores_of_others / (cores_of_others + own_cores)
    return CoreWaits(queued_s, computed_s, total_s, wanted_s, share_of_others)


def _shorten_times(
    loop: RecordedLoop,
    waits: CoreWaits,
    removed_s: Mapping[str, Floats],
    late_collective_s: Floats,
) -> LoopTimes:
    """Return the loop's times without the waits that other programs caused.

    A worker that is to answer for a batch waits for cores as others do: sends,
    handovers and loads beyond the fetch keep the share of the time in which threads had
    a core.

    Args:
        loop: as it was recorded.
        waits: of its threads.
        removed_s: (B, M) s of these waits, by operation, that other programs caused.
        late_collective_s: (B, M) s that collectives ended late because a rank had no
            core.
    """
    times = loop.times
    share = waits.share_of_others
    kept_share = 1 - share * waits.total_s / waits.wanted_s
    fetch_s = np.minimum(loop.sum_of("fetch"), times.load_s)
    quiet_fetch_s = np.maximum(fetch_s - removed_s["fetch"], 0.0)
    loop_cpu_s = np.minimum(times.handover_s, waits.computed_s["wait"])
    answer_s = np.maximum(times.handover_s - loop_cpu_s - removed_s["wait"], 0.0)
    # without workers the handover has the sampler's waits, which need no core
    sampler_s = np.minimum(loop.sum_of("order") * (not times.workers), answer_s)
    answer_s = answer_s - sampler_s
    return replace(
        times,
        load_s=quiet_fetch_s + (times.load_s - fetch_s) * kept_share,
        step_s=np.maximum(times.step_s - removed_s["step"] - late_collective_s, 0.0),
        send_s=times.send_s * kept_share,
        handover_s=loop_cpu_s + sampler_s + answer_s * kept_share,
        busy_extra_s=times.busy_extra_s * kept_share,
    )


def _shorten_fetch_parts(seconds: Floats, waited_s: Floats) -> None:
    """Take waits for cores off the parts of fetches, the computing ones first; in
    place.

    What the parts do not last is dropped.

    Args:
        seconds: (operations, B, M) s of each operation, changed in place.
        waited_s: (B, M) s that workers waited for cores.
    """
    remaining_s = waited_s
    for parts in (COMPUTING_PARTS, WAITING_PARTS):
        codes = [CODES[part] for part in parts]
        # (B, M) s of these parts; each gives up in proportion to what it took
        parts_s = seconds[codes].sum(axis=0)
        removed_s = np.minimum(remaining_s, parts_s)
        seconds[codes] *= 1 - removed_s / np.maximum(parts_s, 1e-300)
        remaining_s = remaining_s - removed_s
