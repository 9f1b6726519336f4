"""The network of a run by level, with the load of its links: where things are drawn, and which
links are drawn as one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import networkx as nx
import numpy as np
import pandas as pd

Place = tuple[float, float]
Cable = tuple[str, str, str]
"""Its ends, and which of those between them it is."""
Link = tuple[str, str, float, float]
"""One direction of it: name, tier, capacity and highest utilisation."""

MOST_HOSTS = 48
"""Hosts that are drawn one by one; of more, those of a switch are one."""
MOST_LINES = 2500
"""Lines of a drawing."""
MOST_ROWS = 30_000
"""Loads of lines in a page: lines times runs and epochs."""
_CABLE = re.compile(r"([^>]+)>([^>#]+)(#\d+)?")
_WITHIN = 0.7
"""Share of the room of a node over which its parallel cables are spread."""
_ARCH = 0.85
"""How far a row is bent whose nodes are linked with one another."""


@dataclass(frozen=True)
class Line:
    """What is drawn as one line."""

    ends: tuple[str, str]  # its nodes
    name: str  # of it, for people
    about: str  # its tier and capacity, for people
    lanes: tuple[int, int]  # place among those between the same nodes, and how many there are
    # names of the directed links from the first end to the second, and back
    links: tuple[list[str], list[str]]


@dataclass(frozen=True)
class Drawing:
    """A network as it is drawn."""

    nodes: Mapping[str, Place]  # where each is drawn, by name
    levels: Sequence[tuple[str, float]]  # what stands in each row, for people, and how high it is
    kinds: Mapping[str, str]  # of each node
    lines: Sequence[Line]  # of it
    notes: Sequence[str] = field(default=())  # what is drawn as one, and what is left out
    is_round: bool = False  # whether its switches stand on a circle


def drawing(links: pd.DataFrame) -> Drawing | None:
    """The network of one or more runs on the same machine, as far as it carried anything; None
    where it carried nothing. ``links``: link, tier, capacity, mean_utilisation."""
    most = links.groupby(links["link"].astype(str), sort=False).agg(
        tier=("tier", "first"), capacity=("capacity", "first"), busy=("mean_utilisation", "max")
    )
    cables: dict[Cable, list[Link]] = {}
    kinds: dict[str, str] = {}
    for link, tier, capacity, busy in most.itertuples(name=None):
        found, kind = _CABLE.fullmatch(str(link)), str(tier).split(">")
        if found is None or len(kind) != 2:
            continue
        a, b, lane = found[1], found[2], found[3] or ""
        kinds |= {a: kind[0], b: kind[1]}
        first, second = sorted((a, b), key=_natural)
        cables.setdefault((first, second, lane), []).append((str(link), str(tier), capacity, busy))
    if not cables:
        return None
    notes: list[str] = []
    return _placed(_lines(cables, kinds, notes), kinds, notes)


def _natural(name: str) -> list[tuple[int, str]]:
    """Orders names with numbers in them by these."""
    return [
        (int(part) if part.isdigit() and part.isascii() else -1, part)
        for part in re.split(r"(\d+)", name)
    ]


def _lines(
    cables: Mapping[Cable, Sequence[Link]], kinds: dict[str, str], notes: list[str]
) -> list[Line]:
    """Cables as lines: each by itself, or hosts of a switch as one, or parallel ones as one."""
    hosts = {name for name, kind in kinds.items() if kind == "host"}
    merge_hosts = len(hosts) > MOST_HOSTS
    if merge_hosts:
        notes.append(
            f"{len(hosts)} hosts: the links of the hosts of a switch are one line, coloured by the"
            " busiest of them."
        )
    switches = sum(1 for a, b, _ in cables if not {a, b} & hosts)
    merge_lanes = switches > MOST_LINES
    if merge_lanes:
        notes.append("Parallel links between two switches are one line.")
    groups: dict[Cable, list[tuple[Link, bool]]] = {}
    for (a, b, lane), links in cables.items():
        key, begin = (a, b, lane), a
        if merge_hosts and {a, b} & hosts:
            switch, begin = (b, a) if a in hosts else (a, b)
            key = (f"hosts of {switch}", switch, "")
            kinds[key[0]] = "host"
        elif merge_lanes:
            key = (a, b, "")
        both = [(link, link[0].startswith(f"{begin}>")) for link in links]
        groups.setdefault(key, []).extend(both)
    busiest = {key: max(link[3] for link, _ in both) for key, both in groups.items()}
    kept = sorted(groups, key=lambda key: -busiest[key])[:MOST_LINES]
    if len(kept) < len(groups):
        notes.append(f"The {len(kept):,} busiest of {len(groups):,} lines are drawn.")
    chosen = set(kept)
    order = [key for key in groups if key in chosen]
    lanes: dict[tuple[str, str], list[str]] = {}
    for *ends, lane in order:
        lanes.setdefault((ends[0], ends[1]), []).append(lane)
    places = {ends: sorted(names, key=_natural) for ends, names in lanes.items()}
    return [_line(key, groups[key], places[key[:2]]) for key in order]


def _line(key: Cable, both: Sequence[tuple[Link, bool]], places: Sequence[str]) -> Line:
    """The line of a group of links, of which it is told whether they begin at its first end."""
    a, b, lane = key
    up = [link[0] for link, is_up in both if is_up]
    down = [link[0] for link, is_up in both if not is_up]
    _, tier, capacity, _ = both[0][0]
    count = max(len(up), len(down))
    each = "each " if count > 1 else ""
    about = f"{tier}, {each}{capacity / 1e9:.4g} GB/s"
    name = f"{a} - {b} {lane}".rstrip() + (f", {count} links" if count > 1 else "")
    return Line((a, b), name, about, (places.index(lane), len(places)), (up, down))


def _levels(lines: Iterable[Line], kinds: Mapping[str, str]) -> dict[str, int]:
    """How far each kind of node is from the hosts, in links; storage stands above all."""
    graph = nx.Graph([(kinds[a], kinds[b]) for a, b in (line.ends for line in lines)])
    first = "host" if "host" in graph else min(graph)
    level: dict[str, int] = dict(nx.single_source_shortest_path_length(graph, first))
    top = max(level.values()) + 1
    level |= {kind: top for kind in graph if kind not in level}
    if "storage" in level:
        del level["storage"]
        level["storage"] = 1 + max(level.values(), default=0)
    return level


def _placed(lines: list[Line], kinds: Mapping[str, str], notes: list[str]) -> Drawing:
    of = {end: kinds[end] for line in lines for end in line.ends}
    level = _levels(lines, kinds)
    at = {name: level[kind] for name, kind in of.items()}
    rows: dict[int, list[str]] = {}
    for name in of:
        rows.setdefault(at[name], []).append(name)
    # storage and hosts without a switch between are rows of their own
    ends = (line.ends for line in lines)
    inside = {at[a] for a, b in ends if at[a] == at[b] and of[a] != "storage"}
    switches = [row for row in rows if {of[name] for name in rows[row]} - {"host", "storage"}]
    if len(switches) == 1 and switches[0] in inside and len(rows[switches[0]]) > 2:
        return Drawing(_circle(rows, switches[0], lines), [], of, lines, notes, True)
    nodes: dict[str, Place] = {}
    height, levels = 0.0, []
    for row in sorted(rows):
        names = sorted(rows[row], key=_natural)
        x = (np.arange(len(names)) + 0.5) / len(names)
        bend = _ARCH * 4 * x * (1 - x) if row in inside else np.zeros(len(x))
        nodes |= {n: (float(p), height + float(q)) for n, p, q in zip(names, x, bend, strict=True)}
        what = ", ".join(sorted({of[name] for name in names}))
        levels.append((f"{len(names)} {what}" if row or not notes else "hosts", height))
        height += 1.0 + (_ARCH if row in inside else 0.0)
    return Drawing(nodes, levels, of, lines, notes)


def _circle(rows: Mapping[int, list[str]], at: int, lines: Sequence[Line]) -> dict[str, Place]:
    """Switches on a circle, and what hangs on them outside of it."""
    names = sorted(rows[at], key=_natural)
    angle = {name: 2 * np.pi * place / len(names) for place, name in enumerate(names)}
    out = {name: (float(np.sin(a)), float(np.cos(a))) for name, a in angle.items()}
    beside: dict[str, list[str]] = {}
    for line in lines:
        for one, other in (line.ends, line.ends[::-1]):
            if one in angle and other not in angle and other not in out:
                beside.setdefault(one, []).append(other)
                out[other] = (0.0, 0.0)
    for switch, others in beside.items():
        width = 2 * np.pi / len(names) * _WITHIN
        for place, name in enumerate(sorted(others, key=_natural)):
            turn = angle[switch] + width * ((place + 0.5) / len(others) - 0.5)
            out[name] = (1.25 * float(np.sin(turn)), 1.25 * float(np.cos(turn)))
    for name in (name for row in rows.values() for name in row if name not in out):
        out[name] = (0.0, 0.0)
    return out


def line_places(of: Drawing) -> list[tuple[Place, Place]]:
    """Where each line begins and ends; parallel ones side by side."""
    heights = np.array([y for _, y in of.nodes.values()])
    # the row of each node; those of a bent row are above its height
    bases = [height for _, height in of.levels] or [0.0]
    row = np.searchsorted(bases, heights + 1e-9, side="right")
    room = np.minimum(1.0 / np.bincount(row)[row], 0.06) * (not of.is_round)
    room_at = dict(zip(heights.tolist(), room.tolist(), strict=True))
    out = []
    for line in of.lines:
        lane, lanes = line.lanes
        aside = ((lane + 0.5) / lanes - 0.5) * _WITHIN
        a, b = ((x + aside * room_at[y], y) for x, y in (of.nodes[end] for end in line.ends))
        out.append((a, b))
    return out


def loads(of: Drawing, links: pd.DataFrame, pick: int) -> list[list[float]]:
    """A row for each line, the busiest last: line, pick, and for both directions bytes, least
    and most mean utilisation, peak; a line that carried nothing has no row. ``links`` are of one
    epoch of one run, for which ``pick`` stands."""
    index = {name: place for place, name in enumerate(links["link"].astype(str))}
    columns = ["nbytes", "mean_utilisation", "peak_utilisation"]
    # a link without a row carried nothing, as the last one here
    values = np.vstack([links[columns].to_numpy(float), np.zeros(3)])
    rows: list[tuple[float, list[float]]] = []
    for number, line in enumerate(of.lines):
        ways = [values[[index.get(name, -1) for name in names] or [-1]] for names in line.links]
        cells = [
            _short(value)
            for nbytes, mean, peak in (way.T for way in ways)
            for value in (nbytes.sum(), mean.min(), mean.max(), peak.max())
        ]
        if any(cells):
            most = max(float(way[:, 1].max()) for way in ways)
            rows.append((most, [number, pick, *cells]))
    return [row for _, row in sorted(rows, key=lambda each: each[0])]


def _short(value: float) -> float:
    """With three digits; whole numbers as such, which are shorter in a file."""
    rounded = float(f"{value:.3g}")
    return int(rounded) if rounded.is_integer() else rounded
