"""Numbers of a case that 64-bit floats cannot hold side by side.

The solver adds up times, bytes and rates. Beside a large number a small one is lost: a float has 53
bits, and the fluid network takes events for one instant that are within 1e-14 of the time
(`INSTANT`). Then a flow would end before its bytes can have crossed its slowest link. So what is
lost must be finer than `SHARE` of the small number, or too small for anybody to mind.
"""

from __future__ import annotations

import numpy as np

from simshuffle.network.analytic import alone
from simshuffle.network.flows import Flows, Links
from simshuffle.network.fluid.records import INSTANT
from simshuffle.network.order import latest_ends
from simshuffle.network.replay.columns import Columns

SHARE = 1e-3
"""Of its own time, bytes or capacity that may be lost of anything."""
NO_TIME = 1e-6
"""s that nobody minds: reached at 3 years of simulated time."""
NO_BYTES = 1.0
"""bytes that nobody minds: reached at 4.5 PB over one link."""
EPSILON = float(np.finfo(np.float64).eps)


def check_resolution(links: Links, flows: Flows, columns: Columns) -> None:
    """Note the flows and links whose numbers are lost beside others; flows must not wait in a
    circle."""
    crossed = np.append(flows.link_bytes(links), 0.0)
    busiest = crossed[flows.routes].max(axis=1, initial=0.0)
    lost = EPSILON * busiest
    bad = np.flatnonzero((flows.nbytes > 0) & (lost > np.maximum(SHARE * flows.nbytes, NO_BYTES)))
    columns.each(
        "flows.size",
        f"must not be lost in rounding, which is to {EPSILON:.2g} of all bytes over one of its"
        f" links and must be within {SHARE:g} of the flow's own",
        ((i, f"{flows.nbytes[i]:g} B of {busiest[i]:g} B") for i in bad.tolist()),
        len(bad),
        "Put flows of so different sizes into cases of their own.",
    )
    drains = (flows.nbytes > 0) & (flows.routes >= 0).any(axis=1)
    seconds = alone(links, flows)
    ends = latest_ends(flows, seconds)
    lost = INSTANT * ends
    bad = np.flatnonzero(drains & (lost > np.maximum(SHARE * seconds, NO_TIME)))
    columns.each(
        "flows",
        f"must not be lost in rounding: times are told to {INSTANT:g} of themselves, which must be"
        f" within {SHARE:g} of what the flow takes alone",
        ((i, f"{seconds[i]:g} s that end at {ends[i]:g} s") for i in bad.tolist()),
        len(bad),
        "Let the case begin near 0 s, or put what comes later into a case of its own.",
    )
    used = np.unique(flows.routes[flows.routes >= 0])
    if not len(used):
        return
    largest = float(links.capacity[used].max())
    slow = used[EPSILON * largest > SHARE * links.capacity[used]]
    columns.each(
        "links.capacity",
        f"must not be lost in rounding, which is to {EPSILON:.2g} of the largest capacity and must"
        f" be within {SHARE:g} of this one",
        ((i, f"{links.capacity[i]:g} B/s beside {largest:g} B/s") for i in slow.tolist()),
        len(slow),
        f"Give capacities within a factor of {SHARE / EPSILON:.2g}; a link that never binds needs"
        " no more.",
    )
