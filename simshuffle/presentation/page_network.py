"""The network of a run by level, with the load of its links: where things are drawn, and which
links are drawn as one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

Place = tuple[float, float]

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
    where it carried nothing.

    Args:
        links: columns link, tier, capacity, mean_utilisation.
    """
    most = links.groupby(links["link"].astype(str), sort=False).agg(
        tier=("tier", "first"), capacity=("capacity", "first"), busy=("mean_utilisation", "max")
    )
    cables: dict[tuple[str, str, str], list[tuple[str, str, float, float]]] = {}
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
    lines = _lines(cables, kinds, notes)
    return _placed(lines, kinds, notes)


def _natural(name: str) -> list[tuple[int, str]]:
    """Orders names with numbers in them by these."""
    return [
        (int(part) if part.isdigit() and part.isascii() else -1, part)
        for part in re.split(r"(\d+)", name)
    ]


def _lines(
    cables: Mapping[tuple[str, str, str], Sequence[tuple[str, str, float, float]]],
    kinds: dict[str, str],
    notes: list[str],
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
    groups: dict[tuple[str, str, str], list[tuple[str, str, float, float, bool]]] = {}
    busiest: dict[tuple[str, str, str], float] = {}
    for (a, b, lane), links in cables.items():
        ends, key = (a, b), lane
        of_host = a in hosts or b in hosts
        if of_host and merge_hosts:
            switch, host = (b, a) if a in hosts else (a, b)
            ends, key = (f"hosts of {switch}", switch), ""
            kinds[ends[0]] = "host"
        elif merge_lanes:
            key = ""
        here = groups.setdefault((*ends, key), [])
        for name, tier, capacity, busy in links:
            is_up = name.startswith(f"{host if of_host and merge_hosts else ends[0]}>")
            here.append((name, tier, capacity, busy, is_up))
            busiest[(*ends, key)] = max(busy, busiest.get((*ends, key), 0.0))
    kept = sorted(groups, key=lambda key: -busiest[key])[:MOST_LINES]
    if len(kept) < len(groups):
        notes.append(f"The {len(kept):,} busiest of {len(groups):,} lines are drawn.")
    chosen = set(kept)
    order = [key for key in groups if key in chosen]
    pairs: dict[tuple[str, str], list[str]] = {}
    for a, b, lane in order:
        pairs.setdefault((a, b), []).append(lane)
    places = {pair: sorted(lanes, key=_natural) for pair, lanes in pairs.items()}
    return [
        _line(key, groups[key], (places[key[:2]].index(key[2]), len(places[key[:2]])))
        for key in order
    ]


def _line(
    key: tuple[str, str, str],
    links: Sequence[tuple[str, str, float, float, bool]],
    lanes: tuple[int, int],
) -> Line:
    a, b, lane = key
    up = [name for name, *_, is_up in links if is_up]
    down = [name for name, *_, is_up in links if not is_up]
    count = max(len(up), len(down))
    each = "each " if count > 1 else ""
    about = f"{links[0][1]}, {each}{links[0][2] / 1e9:.4g} GB/s"
    name = f"{a} - {b} {lane}".rstrip() + (f", {count} links" if count > 1 else "")
    return Line((a, b), name, about, lanes, (up, down))


# ------------------------------------------------------------------------------------------- places


def _levels(lines: Iterable[Line], kinds: Mapping[str, str]) -> dict[str, int]:
    """How far each kind of node is from the hosts, in links; storage stands above all."""
    beside: dict[str, set[str]] = {}
    for line in lines:
        a, b = (kinds[end] for end in line.ends)
        beside.setdefault(a, set()).add(b)
        beside.setdefault(b, set()).add(a)
    level = {"host": 0}
    ring = [kind for kind in ("host",) if kind in beside] or sorted(beside)[:1]
    level = dict.fromkeys(ring, 0)
    while ring:
        ring = [each for kind in ring for each in sorted(beside[kind]) if each not in level]
        top = max(level.values()) + 1
        level |= dict.fromkeys(dict.fromkeys(ring), top)
        ring = list(dict.fromkeys(ring))
    top = max(level.values()) + 1
    level |= {kind: top for kind in beside if kind not in level}
    if "storage" in level:
        level["storage"] = 1 + max(
            (at for kind, at in level.items() if kind != "storage"), default=0
        )
    return level


def _placed(lines: list[Line], kinds: Mapping[str, str], notes: list[str]) -> Drawing:
    level = _levels(lines, kinds)
    there = dict.fromkeys(end for line in lines for end in line.ends)
    rows: dict[int, list[str]] = {}
    for name in there:
        rows.setdefault(level[kinds[name]], []).append(name)
    # storage and hosts without a switch between are rows of their own
    inside = {
        level[kinds[line.ends[0]]]
        for line in lines
        if level[kinds[line.ends[0]]] == level[kinds[line.ends[1]]]
        and kinds[line.ends[0]] != "storage"
    }
    switches = [at for at in rows if {kinds[name] for name in rows[at]} - {"host", "storage"}]
    of = {name: kinds[name] for name in there}
    if len(switches) == 1 and switches[0] in inside and len(rows[switches[0]]) > 2:
        return Drawing(_circle(rows, switches[0], lines), [], of, lines, notes, True)
    nodes: dict[str, Place] = {}
    height, levels = 0.0, []
    for at in sorted(rows):
        names = sorted(rows[at], key=_natural)
        x = (np.arange(len(names)) + 0.5) / len(names)
        bend = _ARCH * 4 * x * (1 - x) if at in inside else np.zeros(len(x))
        nodes |= {n: (float(p), height + float(q)) for n, p, q in zip(names, x, bend, strict=True)}
        what = ", ".join(sorted({of[name] for name in names}))
        levels.append((f"{len(names)} {what}" if at or not notes else "hosts", height))
        height += 1.0 + (_ARCH if at in inside else 0.0)
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
    room = _room(of)
    out = []
    for line in of.lines:
        lane, lanes = line.lanes
        aside = ((lane + 0.5) / lanes - 0.5) * _WITHIN
        a, b = (of.nodes[end] for end in line.ends)
        shift = [0.0 if of.is_round else aside * room[at] for at in (a[1], b[1])]
        out.append(((a[0] + shift[0], a[1]), (b[0] + shift[1], b[1])))
    return out


def _room(of: Drawing) -> dict[float, float]:
    """Of each node in a row, by how high it is; those of a bent row have that of the row."""
    bases = [height for _, height in of.levels] or [0.0]

    def base(y: float) -> float:
        return max((height for height in bases if height <= y + 1e-9), default=0.0)

    counts: dict[float, int] = {}
    for _, y in of.nodes.values():
        counts[base(y)] = counts.get(base(y), 0) + 1
    return {y: min(1.0 / counts[base(y)], 0.06) for _, y in of.nodes.values()}


# -------------------------------------------------------------------------------------------- loads


def loads(of: Drawing, links: pd.DataFrame, pick: int) -> list[list[float]]:
    """A row for each line, the busiest last: line, pick, and for both directions bytes, least
    and most mean utilisation, peak; a line that carried nothing has no row.

    Args:
        of: the drawing.
        links: of one epoch of one run.
        pick: stands for that run and epoch.
    """
    index = {name: place for place, name in enumerate(links["link"].astype(str))}
    columns = ["nbytes", "mean_utilisation", "peak_utilisation"]
    values = links[columns].to_numpy(float)
    rows: list[tuple[float, list[float]]] = []
    for number, line in enumerate(of.lines):
        cells: list[float] = []
        most = 0.0
        for names in line.links:
            here = [index[name] for name in names if name in index]
            if not here:
                cells += [0, 0, 0, 0]
                continue
            part = values[here]
            # a link without a row carried nothing
            least = part[:, 1].min() if len(here) == len(names) else 0.0
            told = (part[:, 0].sum(), least, part[:, 1].max(), part[:, 2].max())
            cells += [_short(value) for value in told]
            most = max(most, float(part[:, 1].max()))
        if any(cells):
            rows.append((most, [number, pick, *cells]))
    return [row for _, row in sorted(rows, key=lambda each: each[0])]


def _short(value: float) -> float:
    """With three digits; whole numbers as such, which are shorter in a file."""
    rounded = float(f"{value:.3g}")
    return int(rounded) if rounded.is_integer() else rounded
