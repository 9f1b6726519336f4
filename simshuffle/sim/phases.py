"""When the phases of every rank began and ended, by name."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from simshuffle.results.timeline import phase_rows

MEASURING = {"measured": "importance"}
ITERATION = {
    "read": "io",
    "loaded": "decode",
    "forwarded": "forward",
    "computed": "backward",
    "slowed": "slowdown",
    "stored": "exchange",
    "stored_by_all": "wait_exchange",
    "computed_by_all": "wait_allreduce",
    "reduced": "allreduce",
    "updated": "update",
    "sent": "exchange",
    "free": "wait_exchange",
}
"""The parts of an iteration and the phase of each, in the order of the authors' training loop:
synchronise with the last exchange after backward, begin the next after update."""


def _as_before(*parts: str) -> dict[str, str]:
    return {part: ITERATION[part] for part in parts}


IN_GROUPS = {
    **_as_before("read", "loaded"),
    "gathered": "wait_group",
    **_as_before("forwarded", "computed"),
    "idle": "bubble",
    "slowed": "group_communication",
    **_as_before(*list(ITERATION)[list(ITERATION).index("stored") :]),
}
"""The same where ranks of a model-parallel group go through the passes together."""
OF_ALL = {
    **_as_before("read", "loaded"),
    "gathered": "wait_allreduce",
    **_as_before("forwarded", "computed", "reduced", "updated"),
    **_as_before("stored", "stored_by_all", "sent", "free"),
}
"""The same where all ranks go through the whole step together."""
FINAL = {
    "stored": "exchange",
    "stored_by_all": "wait_exchange",
    "removed": "exchange",
    "finished": "wait_allreduce",
}
"""The parts of what follows the last iteration."""


@dataclass(slots=True)
class Times:
    """When the parts of an iteration of one rank, or of what is before and after all, ended (s)."""

    begin: float  # of the first of them
    measured: float = 0.0  # importance is known
    read: float = 0.0  # the last byte of the batch was read
    loaded: float = 0.0  # it is on the GPU
    gathered: float = 0.0  # so are those of all ranks with which the step is done
    forwarded: float = 0.0  # the forward pass is done
    computed: float = 0.0  # the backward pass, as if nothing slowed it down
    idle: float = 0.0  # what the rank has to wait for though nothing is sent
    slowed: float = 0.0  # the backward pass, and what the rank's group sends
    stored: float = 0.0  # the samples of the last exchange are written
    stored_by_all: float = 0.0
    computed_by_all: float = 0.0  # all ranks have their gradients
    reduced: float = 0.0  # their sum is known
    updated: float = 0.0  # the weights are
    sent: float = 0.0  # the host work of the next exchange is done
    free: float = 0.0  # its barriers are
    removed: float = 0.0  # what was sent is
    finished: float = 0.0  # all ranks are through


class PhaseLog:
    """The times of all ranks; ``parts`` are attributes of `Times` in their order, with phases."""

    def __init__(self, parts: Mapping[str, str], world_size: int) -> None:
        self._parts = parts
        self._values = attrgetter("begin", *parts)
        # of every rank, its records one after the other
        self._times = [array("d") for _ in range(world_size)]

    def add(self, rank: int, times: Times) -> None:
        """Note the times of one more iteration of a rank."""
        self._times[rank].extend(self._values(times))

    def rows(
        self, epoch: int, nbytes: Mapping[str, Any] | None = None, *, final: bool = False
    ) -> dict[str, Any]:
        """The rows of an epoch (see `simshuffle.results.timeline.phase_rows`); uses the times up.
        ``nbytes`` are those that a part moved, by its name: (iterations, M), or one number for all.
        ``final`` ones are no iterations."""
        ranks = np.stack([np.frombuffer(times) for times in self._times])
        self._times.clear()
        bounds = ranks.reshape(len(ranks), -1, 1 + len(self._parts)).swapaxes(0, 1)
        rows = phase_rows(epoch, list(self._parts.values()), bounds, np.zeros(1), final)
        # not as one array of all parts: most move nothing
        lasts = bounds[..., 1:] > bounds[..., :-1]
        number = np.broadcast_to(np.arange(len(self._parts), dtype=np.int8), lasts.shape)[lasts]
        for place, part in enumerate(self._parts):
            if nbytes and part in nbytes:
                moved = np.broadcast_to(nbytes[part], lasts.shape[:2])
                rows["nbytes"][number == place] = moved[lasts[..., place]]
        return rows
