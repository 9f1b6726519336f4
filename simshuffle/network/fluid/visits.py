"""A heap of links to visit, the lowest level first; of equal levels the lowest number."""

from __future__ import annotations

from simshuffle.network.compiling import compiled
from simshuffle.network.fluid.records import FIRST, Records


@compiled
def push_visit(visits: Records, n: int, key: float, link: int) -> None:
    """Add a link to a heap of ``n``."""
    pos = n
    while pos > 0:
        parent = (pos - 1) >> 1
        if visits[parent].key < key or (visits[parent].key == key and visits[parent].link <= link):
            break
        visits[pos].key = visits[parent].key
        visits[pos].link = visits[parent].link
        pos = parent
    visits[pos].key = key
    visits[pos].link = link


@compiled
def pop_visit(visits: Records, n: int) -> None:
    """Take out the first link, so that ``n`` are left."""
    visits[0].key = visits[n].key
    visits[0].link = visits[n].link
    sift_visits(visits, n, FIRST)


@compiled
def sift_visits(visits: Records, n: int, pos: int) -> None:
    """Restore the order of a heap of ``n`` of which the one at ``pos`` may be too large."""
    key = visits[pos].key
    link = visits[pos].link
    while True:
        child = 2 * pos + 1
        if child >= n:
            break
        other = child + 1
        if other < n and (
            visits[other].key < visits[child].key
            or (visits[other].key == visits[child].key and visits[other].link < visits[child].link)
        ):
            child = other
        if visits[child].key > key or (visits[child].key == key and visits[child].link >= link):
            break
        visits[pos].key = visits[child].key
        visits[pos].link = visits[child].link
        pos = child
    visits[pos].key = key
    visits[pos].link = link
