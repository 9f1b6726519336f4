"""A heap of links to visit, the lowest level first; of equal levels the lowest number.

Each entry has four below it, which lie together: half as many steps as with two, and each has to
wait for memory but once.
"""

from __future__ import annotations

from simshuffle.network.fluid_records import FIRST, Records
from simshuffle.spec.compiling import compiled

BELOW = 4  # entries below one: below place k are 4k + 1 to 4k + 4


@compiled
def is_before(visits: Records, a: int, b: int) -> bool:
    """Whether the entry at ``a`` comes before the one at ``b``."""
    return _is_lower(visits, a, visits[b].key, visits[b].link)


@compiled
def _is_lower(visits: Records, at: int, key: float, link: int) -> bool:
    return bool(visits[at].key < key or (visits[at].key == key and visits[at].link < link))


@compiled
def push_visit(visits: Records, n: int, key: float, link: int) -> None:
    """Add a link to a heap of ``n``."""
    pos = n
    while pos > 0:
        parent = (pos - 1) // BELOW
        if _is_lower(visits, parent, key, link):
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
def order_visits(visits: Records, n: int) -> None:
    """Make a heap of ``n`` entries in any order."""
    for pos in range((n - 2) // BELOW, -1, -1):
        sift_visits(visits, n, pos)


@compiled
def sift_visits(visits: Records, n: int, pos: int) -> None:
    """Restore the order of a heap of ``n`` of which the one at ``pos`` may be too large."""
    key = visits[pos].key
    link = visits[pos].link
    while True:
        first = BELOW * pos + 1
        if first >= n:
            break
        child = first
        for other in range(first + 1, min(first + BELOW, n)):
            if is_before(visits, other, child):
                child = other
        if not _is_lower(visits, child, key, link):
            break
        visits[pos].key = visits[child].key
        visits[pos].link = visits[child].link
        pos = child
    visits[pos].key = key
    visits[pos].link = link
