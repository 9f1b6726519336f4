"""Explicit flows from lists."""

from collections.abc import Sequence

from simshuffle.fabric.network import Flows, Fluid, Links
from simshuffle.spec.arrays import Floats


def finish_times(
    capacities: Sequence[float],
    latencies: Sequence[float],
    routes: Sequence[Sequence[int]],
    nbytes: Sequence[float],
    start: Sequence[float],
    after: Sequence[Sequence[int]] | None = None,
) -> Floats:
    """(flows,) s when explicit flows end in the fluid network; ``after``: for each flow those that
    it waits for."""
    flows = Flows.from_lists(routes, nbytes, start, after)
    return Fluid().finish_times(Links(capacities, latencies), flows).finish
