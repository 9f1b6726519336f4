"""The network of a run by level, with the load of its links: positions of nodes, and
which links are drawn as one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import networkx as nx
import numpy as np
import pandas as pd

Position = tuple[float, float]
"""x and y of a node: x from 0 to 1 in rows 1 or more apart, or both around a circle."""
Cable = tuple[str, str, str]
"""Both ends of a cable, and its lane among parallel cables: '#2', or '' for the only one."""
Link = tuple[str, str, float, float]
"""A direction of a cable: name, tier, capacity (bytes/s), and the mean utilisation of its
busiest epoch.
"""

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
"""Height of the arch of a row whose nodes are linked with one another."""


@dataclass(frozen=True)
class Line:
    """Links that are drawn as one line between two nodes."""

    ends: tuple[str, str]  # its nodes
    name: str  # of it, for people
    about: str  # its tier and capacity, for people
    # place among the lines between the same nodes, from 0, and how many there are
    lanes: tuple[int, int]
    # names of the directed links from the first end to the second, and back
    links: tuple[list[str], list[str]]


@dataclass(frozen=True)
class Drawing:
    """A network as it is drawn."""

    nodes: Mapping[str, Position]  # where each is drawn, by name
    # what stands in each row, for people, and its y, lowest first; [] on a circle
    levels: Sequence[tuple[str, float]]
    kinds: Mapping[str, str]  # of each node, such as 'host' or 'storage'
    lines: Sequence[Line]
    # sentences on what is drawn as one, and what is left out
    notes: Sequence[str] = field(default=())
    is_round: bool = False  # whether its switches stand on a circle


def draw_network(links: pd.DataFrame) -> Drawing | None:
    """Return the drawing of the network of runs on one machine; None without cables.

    Only cables, which are links called A>B or A>B#LANE of a tier X>Y, are drawn; other
    links are left out. Tier and capacity are those of a link's first row.

    Args:
        links: link, tier, capacity (bytes/s), mean_utilisation; rows of any epochs.
    """
    loads_of_links = links.groupby(links["link"].astype(str), sort=False).agg(
        tier=("tier", "first"),
        capacity=("capacity", "first"),
        busy=("mean_utilisation", "max"),
    )
    cables: dict[Cable, list[Link]] = {}
    kinds: dict[str, str] = {}
    for link, tier, capacity, busy in loads_of_links.itertuples(name=None):
        match = _CABLE.fullmatch(str(link))
        tiers = str(tier).split(">")
        if match is None or len(tiers) != 2:
            continue
        a = match[1]
        b = match[2]
        lane = match[3] or ""
        kinds |= {a: tiers[0], b: tiers[1]}
        first, second = sorted((a, b), key=_natural_order)
        cables.setdefault((first, second, lane), []).append(
            (str(link), str(tier), capacity, busy)
        )
    if not cables:
        return None
    notes: list[str] = []
    return _place_nodes(_merge_cables(cables, kinds, notes), kinds, notes)


def _natural_order(name: str) -> list[tuple[int, str]]:
    """Return a key that orders names with numbers in them by these numbers."""
    return [
        (int(part) if part.isdigit() and part.isascii() else -1, part)
        for part in re.split(r"(\d+)", name)
    ]


def _merge_cables(
    cables: Mapping[Cable, Sequence[Link]], kinds: dict[str, str], notes: list[str]
) -> list[Line]:
    """Return the lines of the drawing, in the order of the cables.

    A line is a cable. Of more than `MOST_HOSTS` hosts, all cables of the hosts of a
    switch are one line, to a node that is added to ``kinds``. Of more than `MOST_LINES`
    cables between switches, the parallel ones are one. The `MOST_LINES` busiest lines
    are kept. What is merged or left out is appended to ``notes``.
    """
    hosts = {name for name, kind in kinds.items() if kind == "host"}
    merge_hosts = len(hosts) > MOST_HOSTS
    if merge_hosts:
        notes.append(
            f"{len(hosts)} hosts: one line stands for all links between a switch and its hosts,"
            " in the colour of the busiest link."
        )
    switches = sum(1 for a, b, _ in cables if not {a, b} & hosts)
    merge_lanes = switches > MOST_LINES
    if merge_lanes:
        notes.append("Parallel links between two switches are one line.")
    groups: dict[Cable, list[tuple[Link, bool]]] = {}
    for (a, b, lane), links in cables.items():
        key = (a, b, lane)
        first_end = a
        if merge_hosts and {a, b} & hosts:
            switch, first_end = (b, a) if a in hosts else (a, b)
            key = (f"hosts of {switch}", switch, "")
            kinds[key[0]] = "host"
        elif merge_lanes:
            key = (a, b, "")
        directed_links = [(link, link[0].startswith(f"{first_end}>")) for link in links]
        groups.setdefault(key, []).extend(directed_links)
    busiest = {
        key: max(link[3] for link, _ in directed_links)
        for key, directed_links in groups.items()
    }
    drawn_keys = sorted(groups, key=lambda key: -busiest[key])[:MOST_LINES]
    if len(drawn_keys) < len(groups):
        notes.append(
            f"The {len(drawn_keys):,} busiest of {len(groups):,} lines are drawn."
        )
    chosen = set(drawn_keys)
    order = [key for key in groups if key in chosen]
    lanes: dict[tuple[str, str], list[str]] = {}
    for *ends, lane in order:
        lanes.setdefault((ends[0], ends[1]), []).append(lane)
    lane_order = {
        ends: sorted(names, key=_natural_order) for ends, names in lanes.items()
    }
    return [_merge_links(key, groups[key], lane_order[key[:2]]) for key in order]


def _merge_links(
    key: Cable, directed_links: Sequence[tuple[Link, bool]], lane_order: Sequence[str]
) -> Line:
    """Return the line of a group of links; the first gives its tier and capacity.

    Args:
        key: both ends of the line, and its lane.
        directed_links: each link, and whether it begins at the first end.
        lane_order: the lanes of the lines between both ends, in the order of drawing.
    """
    a, b, lane = key
    up = [link[0] for link, is_up in directed_links if is_up]
    down = [link[0] for link, is_up in directed_links if not is_up]
    _, tier, capacity, _ = directed_links[0][0]
    count = max(len(up), len(down))
    about = f"{tier}, {'each ' if count > 1 else ''}{capacity / 1e9:.4g} GB/s"
    name = f"{a} - {b} {lane}".rstrip() + (f", {count} links" if count > 1 else "")
    return Line(
        (a, b), name, about, (lane_order.index(lane), len(lane_order)), (up, down)
    )


def _levels_of_kinds(lines: Iterable[Line], kinds: Mapping[str, str]) -> dict[str, int]:
    """Return the level of each kind of node: its distance in links from hosts, at 0.

    Without hosts, distances are from the first kind by name. Kinds without a way to
    hosts stand above the others, and storage above all.
    """
    graph = nx.Graph([(kinds[a], kinds[b]) for a, b in (line.ends for line in lines)])
    first = "host" if "host" in graph else min(graph)
    level: dict[str, int] = dict(nx.single_source_shortest_path_length(graph, first))
    top = max(level.values()) + 1
    level |= {kind: top for kind in graph if kind not in level}
    if "storage" in level:
        del level["storage"]
        level["storage"] = 1 + max(level.values(), default=0)
    return level


def _place_nodes(
    lines: list[Line], kinds: Mapping[str, str], notes: list[str]
) -> Drawing:
    """Return the drawing, with nodes in rows by level.

    If switches have a single level, are more than two, and some are linked with one
    another, they stand on a circle, without rows. A row is arched if some of its nodes
    are linked with one another. ``notes`` are those of the drawing.
    """
    kind_of_node = {end: kinds[end] for line in lines for end in line.ends}
    level = _levels_of_kinds(lines, kinds)
    level_of_node = {name: level[kind] for name, kind in kind_of_node.items()}
    rows: dict[int, list[str]] = {}
    for name in kind_of_node:
        rows.setdefault(level_of_node[name], []).append(name)
    # storage and hosts without a switch between are rows of their own
    pairs = (line.ends for line in lines)
    bent_levels = {
        level_of_node[a]
        for a, b in pairs
        if level_of_node[a] == level_of_node[b] and kind_of_node[a] != "storage"
    }
    no_switches = {"host", "storage"}
    switch_levels = [
        level
        for level, names in rows.items()
        if {kind_of_node[n] for n in names} - no_switches
    ]
    if len(switch_levels) == 1:
        (switch_level,) = switch_levels
        if switch_level in bent_levels and len(rows[switch_level]) > 2:
            nodes = _place_on_circle(rows, switch_level, lines)
            return Drawing(nodes, [], kind_of_node, lines, notes, is_round=True)
    nodes = {}
    height = 0.0
    levels = []
    for row in sorted(rows):
        names = sorted(rows[row], key=_natural_order)
        x = (np.arange(len(names)) + 0.5) / len(names)
        bend = _ARCH * 4 * x * (1 - x) if row in bent_levels else np.zeros(len(x))
        nodes |= {
            name: (float(across), height + float(rise))
            for name, across, rise in zip(names, x, bend, strict=True)
        }
        kinds_of_row = ", ".join(sorted({kind_of_node[name] for name in names}))
        levels.append(
            (f"{len(names)} {kinds_of_row}" if row or not notes else "hosts", height)
        )
        height += 1.0 + (_ARCH if row in bent_levels else 0.0)
    return Drawing(nodes, levels, kind_of_node, lines, notes)


def _place_on_circle(
    rows: Mapping[int, list[str]], level: int, lines: Sequence[Line]
) -> dict[str, Position]:
    """Return positions: switches of ``level`` on a circle of radius 1, neighbours at
    1.25.

    Nodes that are neighbours of none stand in the middle.
    """
    names = sorted(rows[level], key=_natural_order)
    angle = {name: 2 * np.pi * index / len(names) for index, name in enumerate(names)}
    positions = {
        name: (float(np.sin(turn)), float(np.cos(turn))) for name, turn in angle.items()
    }
    neighbours_of_switch: dict[str, list[str]] = {}
    for line in lines:
        for node, neighbour in (line.ends, line.ends[::-1]):
            if node in angle and neighbour not in angle and neighbour not in positions:
                neighbours_of_switch.setdefault(node, []).append(neighbour)
                positions[neighbour] = (0.0, 0.0)
    for switch, neighbours in neighbours_of_switch.items():
        width = 2 * np.pi / len(names) * _WITHIN
        for index, name in enumerate(sorted(neighbours, key=_natural_order)):
            angle_of_node = angle[switch] + width * (
                (index + 0.5) / len(neighbours) - 0.5
            )
            x = float(np.sin(angle_of_node))
            y = float(np.cos(angle_of_node))
            positions[name] = (1.25 * x, 1.25 * y)
    for name in (
        name for row in rows.values() for name in row if name not in positions
    ):
        positions[name] = (0.0, 0.0)
    return positions


def place_lines(drawing: Drawing) -> list[tuple[Position, Position]]:
    """Return where each line of the drawing begins and ends, in their order.

    Parallel lines stand side by side in rows, and on one another on a circle.
    """
    heights = np.array([y for _, y in drawing.nodes.values()])
    # the row of each node; those of a bent row are above its height
    heights_of_rows = [height for _, height in drawing.levels] or [0.0]
    row = np.searchsorted(heights_of_rows, heights + 1e-9, side="right")
    spacing = np.minimum(1.0 / np.bincount(row)[row], 0.06) * (not drawing.is_round)
    spacing_at_height = dict(zip(heights.tolist(), spacing.tolist(), strict=True))
    positions = []
    for line in drawing.lines:
        lane, lanes = line.lanes
        offset = ((lane + 0.5) / lanes - 0.5) * _WITHIN
        (x, y), (x2, y2) = (drawing.nodes[end] for end in line.ends)
        begin = (x + offset * spacing_at_height[y], y)
        positions.append((begin, (x2 + offset * spacing_at_height[y2], y2)))
    return positions


def link_loads(drawing: Drawing, links: pd.DataFrame, pick: int) -> list[list[float]]:
    """Return a row for each line that carried something, the busiest last.

    Columns: index of the line, ``pick``, and for each direction four numbers: bytes of
    all its links, least and most mean utilisation of a link, and highest peak. They
    have three digits. A link without a row carried nothing.

    Args:
        drawing: of the network.
        links: of one epoch of one run: link, nbytes, mean_utilisation,
            peak_utilisation.
        pick: stands for that run and epoch.
    """
    index = {name: row for row, name in enumerate(links["link"].astype(str))}
    columns = ["nbytes", "mean_utilisation", "peak_utilisation"]
    # (links + 1, 3): a link without a row carried nothing, as the last one here
    values = np.vstack([links[columns].to_numpy(float), np.zeros(3)])
    rows: list[tuple[float, list[float]]] = []
    for line_index, line in enumerate(drawing.lines):
        # for each direction (its links, 3)
        loads_by_direction = [
            values[[index.get(name, -1) for name in names] or [-1]]
            for names in line.links
        ]
        cells = [
            _round(value)
            for nbytes, mean, peak in (direction.T for direction in loads_by_direction)
            for value in (nbytes.sum(), mean.min(), mean.max(), peak.max())
        ]
        if any(cells):
            highest_mean = max(
                float(direction[:, 1].max()) for direction in loads_by_direction
            )
            rows.append((highest_mean, [line_index, pick, *cells]))
    return [row for _, row in sorted(rows, key=lambda keyed_row: keyed_row[0])]


def _round(value: float) -> float:
    """Round a value to three digits; whole numbers become integers, which are shorter
    in a file.
    """
    rounded = float(f"{value:.3g}")
    return int(rounded) if rounded.is_integer() else rounded
