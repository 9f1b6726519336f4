"""Draw a network by level, its cables coloured by the messages that cross them."""

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
    """Draw the switches of a network, and the cables between them by the busier
    direction of each.

    Switches of a tree stand in rows, by their distance from the hosts. Switches that
    all have hosts stand on a circle, in their order, if there are more than two. Hosts,
    storage switches and the cables to them are not drawn.

    A cable of k times the bandwidth of the slowest one counts 1/k of its messages.

    Args:
        fabric: the network.
        loads: (links,) messages on each link.
        pattern: name of what is sent, for people.
    """
    positions = _positions_of_switches(fabric)
    switches = fabric.switches
    cabling = fabric.cabling
    switch_of_end = fabric.switch_of_node[cabling.ends]
    joins_switches = (switch_of_end >= 0).all(axis=1)
    joins_transit_switches = switches.is_transit[switch_of_end].all(axis=1)
    cables = np.flatnonzero(joins_switches & joins_transit_switches)
    # what the busier direction of a cable carries, in units of the slowest cable
    # links 2c and 2c + 1 are both directions of cable c
    load_of_cable = loads.reshape(-1, 2).max(axis=1)[cables].astype(float)
    load_of_cable *= cabling.bandwidth.min() / cabling.bandwidth[cables]
    order = np.argsort(load_of_cable, kind="stable")
    ends = positions[switch_of_end[cables][order]]
    with matplotlib.rc_context(STYLE):
        figure = new_figure(2.6)
        ax = figure.subplots()
        is_dense = len(ends) > 2000
        lines = LineCollection(
            list(ends),
            array=load_of_cable[order],
            cmap=MAP,
            linewidths=0.3 if is_dense else 0.8,
            rasterized=is_dense,
        )
        lines.set_clim(0.0, max(float(load_of_cable.max(initial=0.0)), 1.0))
        ax.add_collection(lines)
        transit_switches = np.flatnonzero(switches.is_transit)
        marker_size = float(np.clip(400.0 / max(len(transit_switches), 1), 0.4, 12.0))
        ax.scatter(
            positions[transit_switches, 0],
            positions[transit_switches, 1],
            s=marker_size,
            color="black",
            zorder=3,
            linewidths=0,
        )
        _label_rows(ax, fabric)
        colorbar = figure.colorbar(lines, ax=ax, shrink=0.8, pad=0.02)
        colorbar.set_label(f"messages over a cable\n({pattern})")
        ax.set_axis_off()
        ax.autoscale_view()
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure to a .png or .pdf file, completely or not at all.

    A file at ``path`` is replaced. The folder must be there.
    """
    with room_for(path, path.parent) as folder:
        draft = Path(folder, path.name)
        with matplotlib.rc_context(STYLE):
            figure.savefig(draft, dpi=300, metadata=metadata(path.suffix, ""))
        draft.replace(path)


def _positions_of_switches(fabric: Fabric) -> Floats:
    """Return (switches, 2) the x and y at which each switch is drawn.

    In rows, x is from 0 to 1 and y the distance from the hosts; a circle has radius 1.
    Storage switches, which are not drawn, have 0.
    """
    switches = fabric.switches
    positions = np.zeros((len(switches.nodes), 2))
    rows = _switches_by_depth(fabric)
    if len(rows) == 1 and len(rows[0]) > 2:
        angle = 2.0 * np.pi * np.arange(len(rows[0])) / len(rows[0])
        positions[rows[0]] = np.stack([np.sin(angle), np.cos(angle)], axis=1)
        return positions
    for level, row in rows.items():
        positions[row, 0] = (np.arange(len(row)) + 0.5) / len(row)
        positions[row, 1] = level
    return positions


def _switches_by_depth(fabric: Fabric) -> dict[int, Ints64]:
    """Return the switches of each distance from the hosts, by that distance in steps.

    Distances and switches ascend. Switches with hosts have distance 0. Storage switches
    are left out.
    """
    switches = fabric.switches
    transit_switches = np.flatnonzero(switches.is_transit)
    return {
        level: transit_switches[switches.depth[transit_switches] == level]
        for level in np.unique(switches.depth[transit_switches]).tolist()
    }


def _label_rows(ax: Axes, fabric: Fabric) -> None:
    """Write beside each row of switches their number and their tiers.

    Where there is one row, the text is the title of the axes.
    """
    tiers = fabric.cabling.tiers
    nodes = fabric.switches.nodes
    hosts = len(fabric.cabling.nodes_of_kind("host"))
    rows = _switches_by_depth(fabric)
    for level, row in rows.items():
        kinds = sorted({tiers[node] for node in nodes[row].tolist()})
        if len(rows) == 1:
            ax.set_title(
                f"{len(row)} {' and '.join(kinds)} switches, {hosts} hosts", fontsize=7
            )
            return
        text = f"{len(row)} {', '.join(kinds)}"
        text += f"\n({hosts} hosts)" if level == 0 else ""
        ax.text(-0.03, level, text, ha="right", va="center", fontsize=6.5)
