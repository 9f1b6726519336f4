"""An independent fluid simulator, as slow and plain as possible: numpy water-filling over
everything at every event."""

import numpy as np


def max_min_rates(capacity, routes, caps):
    """Max-min fair rates by progressive filling: all rates rise together until a link is full or a
    cap is reached."""
    rates = np.zeros(len(routes))
    active = np.ones(len(routes), bool)
    uses = np.zeros((len(capacity), len(routes)))
    for flow, route in enumerate(routes):
        for link in route:
            uses[link, flow] = 1
    while active.any():
        used = uses @ rates
        open_flows = uses @ active
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.where(open_flows > 0, (capacity - used) / open_flows, np.inf)
        step = min(room.min(initial=np.inf), (caps - rates)[active].min())
        rates[active] += max(step, 0.0)
        full = (open_flows > 0) & (room <= step * (1 + 1e-12) + 1e-15 * capacity)
        stopped = active & ((uses[full].sum(axis=0) > 0) | (rates >= caps * (1 - 1e-12)))
        if not stopped.any():
            raise AssertionError("filling stands still")
        active &= ~stopped
    return rates


def finish_times(capacity, latency, routes, nbytes, start, after=None, caps=None):
    """When each flow ends; arguments as `tests.explicit.finish_times`, and caps (bytes/s)
    of the flows."""
    capacity = np.asarray(capacity, float)
    count = len(routes)
    caps = np.full(count, np.inf) if caps is None else np.asarray(caps, float)
    after = after or [[] for _ in routes]
    delay = [sum(latency[link] for link in route) for route in routes]
    begins = np.array([start[i] + delay[i] if not after[i] else np.inf for i in range(count)])
    left = np.array(nbytes, float)
    ends = np.full(count, np.nan)
    now = 0.0
    while np.isnan(ends).any():
        active = [i for i in range(count) if np.isnan(ends[i]) and begins[i] <= now]
        rates = (
            max_min_rates(capacity, [routes[i] for i in active], caps[active])
            if active
            else np.zeros(0)
        )
        to_end = left[active] / rates if active else np.array([np.inf])
        to_begin = min(
            (begins[i] - now for i in range(count) if np.isnan(ends[i]) and begins[i] > now),
            default=np.inf,
        )
        step = min(to_end.min(initial=np.inf), to_begin)
        left[active] -= rates * step
        now += step
        for k, i in enumerate(active):
            if to_end[k] <= step * (1 + 1e-12):
                ends[i] = now
        for i in range(count):
            if after[i] and begins[i] == np.inf and not np.isnan(ends[after[i]]).any():
                begins[i] = ends[after[i]].max() + delay[i]
    return ends
