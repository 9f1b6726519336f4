"""Which links can ever be a bottleneck: the others need not be shared.

If every flow on link x also crosses link y, and y has no more capacity than x, then x never carries
more than y may: leaving x out changes no rate. Under D-mod-K the last link between switches before
a host is often of this kind.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simshuffle.network.compiling import entry
from simshuffle.network.flows import Flows, Ints, Links


@entry
def _meet(routes: Any, candidates: Any, flows: Any, together: Any) -> None:
    """Count the flows of each link, and those that also cross each of its candidates.

    ``candidates``: (links, hops) the route of the first flow of each link, filled here; ``flows``:
    (links,); ``together``: (links, hops).
    """
    for i in range(routes.shape[0]):
        for k in range(routes.shape[1]):
            link = routes[i, k]
            if link < 0:
                break
            if flows[link] == 0:
                for j in range(routes.shape[1]):
                    candidates[link, j] = routes[i, j]
            flows[link] += 1
            for j in range(routes.shape[1]):
                other = candidates[link, j]
                if other < 0:
                    break
                for m in range(routes.shape[1]):
                    if routes[i, m] == other:
                        together[link, j] += 1
                        break


@entry
def _shorten(routes: Any, number: Any, out: Any) -> None:
    """Write into ``out`` the links of each route that have a number, as numbers."""
    for i in range(routes.shape[0]):
        n = 0
        for k in range(routes.shape[1]):
            if routes[i, k] >= 0 and number[routes[i, k]] >= 0:
                out[i, n] = number[routes[i, k]]
                n += 1


def binding(links: Links, flows: Flows) -> tuple[Links, Ints]:
    """The links that can be a bottleneck, renumbered, and the routes over them.

    Returns:
        The links that are left, and (flows, hops) int32 routes over them, padded with -1: every
        rate is the same as over all links.
    """
    count, hops = len(links), flows.routes.shape[1]
    candidates = np.full((count, hops), -1, np.int32)
    used, together = np.zeros(count, np.int64), np.zeros((count, hops), np.int64)
    _meet(flows.routes, candidates, used, together)
    padded = np.append(links.capacity, np.inf)
    own = np.arange(count)[:, None]
    always = (candidates >= 0) & (candidates != own) & (together == used[:, None])
    tighter = padded[candidates] < links.capacity[:, None]
    # of two that carry the same flows at the same capacity, the first stays
    as_tight = (padded[candidates] == links.capacity[:, None]) & (
        (used[candidates] > used[:, None]) | (candidates < own)
    )
    kept = (used > 0) & ~(always & (tighter | as_tight)).any(axis=1)
    number = np.where(kept, np.cumsum(kept) - 1, -1).astype(np.int32)
    routes = np.full(flows.routes.shape, -1, np.int32)
    _shorten(flows.routes, number, routes)
    longest = int(np.flatnonzero((routes >= 0).any(axis=0)).max(initial=0)) + 1
    return Links(links.capacity[kept], links.latency[kept]), np.ascontiguousarray(
        routes[:, :longest]
    )
