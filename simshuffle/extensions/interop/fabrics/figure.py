"""A network drawn by level, its links coloured by what is on them."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from simshuffle.fabric.routing import Fabric
from simshuffle.report.canvas import new_figure
from simshuffle.report.folders import room_for
from simshuffle.report.style import STYLE, metadata
from simshuffle.spec.arrays import Floats, Ints, Ints64

MAP = "viridis_r"


def fabric_figure(fabric: Fabric, loads: Ints, pattern: str) -> Figure:
    """The switches of a network, and the cables between them by the busier of their directions,
    given the messages (links,) on each; ``pattern`` is what is sent, for people. Switches of a tree
    stand in rows, by their distance from the hosts. Switches that all have hosts stand on a circle,
    those of a group side by side."""
    place = _places(fabric)
    of, cabling = fabric.switches, fabric.cabling
    switch = fabric.switch_of_node[cabling.ends]
    between = np.flatnonzero((switch >= 0).all(axis=1) & of.is_transit[switch].all(axis=1))
    # what the busier direction of a cable carries, in units of the slowest cable
    load = loads.reshape(-1, 2).max(axis=1)[between].astype(float)
    load *= cabling.bandwidth.min() / cabling.bandwidth[between]
    order = np.argsort(load, kind="stable")
    ends = place[switch[between][order]]
    with matplotlib.rc_context(STYLE):
        figure = new_figure(2.6)
        ax = figure.subplots()
        many = len(ends) > 2000
        lines = LineCollection(
            list(ends),
            array=load[order],
            cmap=MAP,
            linewidths=0.3 if many else 0.8,
            rasterized=many,
        )
        lines.set_clim(0.0, max(float(load.max(initial=0.0)), 1.0))
        ax.add_collection(lines)
        seen = np.flatnonzero(of.is_transit)
        size = float(np.clip(400.0 / max(len(seen), 1), 0.4, 12.0))
        ax.scatter(place[seen, 0], place[seen, 1], s=size, color="black", zorder=3, linewidths=0)
        _name_rows(ax, fabric)
        bar = figure.colorbar(lines, ax=ax, shrink=0.8, pad=0.02)
        bar.set_label(f"messages over a cable\n({pattern})")
        ax.set_axis_off()
        ax.autoscale_view()
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as a file whose name ends in .png or .pdf, whole or not at all."""
    with room_for(path, path.parent) as folder:
        draft = Path(folder, path.name)
        with matplotlib.rc_context(STYLE):
            figure.savefig(draft, dpi=300, metadata=metadata(path.suffix, ""))
        draft.replace(path)


def _places(fabric: Fabric) -> Floats:
    """(switches, 2) where each is drawn."""
    of = fabric.switches
    out = np.zeros((len(of.nodes), 2))
    rows = _rows(fabric)
    if len(rows) == 1 and len(rows[0]) > 2:
        angle = 2.0 * np.pi * np.arange(len(rows[0])) / len(rows[0])
        out[rows[0]] = np.stack([np.sin(angle), np.cos(angle)], axis=1)
        return out
    for level, row in rows.items():
        out[row, 0] = (np.arange(len(row)) + 0.5) / len(row)
        out[row, 1] = level
    return out


def _rows(fabric: Fabric) -> dict[int, Ints64]:
    """The switches of each distance from the hosts; at 0 alone they stand on a circle."""
    of = fabric.switches
    seen = np.flatnonzero(of.is_transit)
    return {level: seen[of.depth[seen] == level] for level in np.unique(of.depth[seen]).tolist()}


def _name_rows(ax: Axes, fabric: Fabric) -> None:
    """Beside each row what stands in it, and how many."""
    tiers, nodes = fabric.cabling.tiers, fabric.switches.nodes
    hosts = len(fabric.cabling.nodes_of_kind("host"))
    rows = _rows(fabric)
    for level, row in rows.items():
        kinds = sorted({tiers[node] for node in nodes[row].tolist()})
        if len(rows) == 1:
            ax.set_title(f"{len(row)} {' and '.join(kinds)} switches, {hosts} hosts", fontsize=7)
            return
        text = f"{len(row)} {', '.join(kinds)}"
        text += f"\n({hosts} hosts)" if level == 0 else ""
        ax.text(-0.03, level, text, ha="right", va="center", fontsize=6.5)
