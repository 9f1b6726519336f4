"""What an incast does to a flow that does not take part in it, with rates shared fairly and packet
by packet.

    python docs/figures/incast.py [PATH]

On a full-bisection fat tree of two levels, 32 hosts a leaf switch, one host of each of n leaf
switches sends to one host. The victim stands beside one of these senders and goes to another leaf
switch, by the same link up. It shares its receiver with one flow from there, so that half a link is
all that it can have.

Fluid: the incast takes C / n of the link up, and leaves the victim its half. Packets: the buffer
behind that link fills with packets that wait for their turn at the receiver of the incast, and
those of the victim stand in line among them, one for one. So the victim gets no more than a sender
of the incast does: C / n.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from simshuffle.fabric.network import Flows, Fluid, Links, Packet
from simshuffle.fabric.routing import ForwardingTable
from simshuffle.fabric.topology import FatTree
from simshuffle.report.canvas import new_figure
from simshuffle.report.style import COLOURS, STYLE

ARITY = 32
SENDERS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24)
NBYTES = float(4 << 20)  # of the victim: many times what the buffers hold
MODELS = {"fluid": Fluid(), "packet": Packet()}


def tree() -> ForwardingTable:
    """The routes of the tree."""
    size = {"kind": "fat_tree", "levels": 2, "arity": ARITY}
    speed = {
        "link_bandwidth": "12.5 GB/s",
        "cable_latency": "20 ns",
        "switch_latency": "90 ns",
    }
    return ForwardingTable(FatTree.model_validate(size | speed).graph())


def victim_rates(senders: Sequence[int] = SENDERS) -> dict[str, list[float]]:
    """Bytes/s of the victim by network model, for each number of senders (at most 30)."""
    table = tree()
    links = Links(table.links.capacity, table.links.latency)
    # D-mod-K sends what goes to port 64 and to port 32 up through spine 0
    victim = 0
    receiver = 2 * ARITY
    hot = ARITY
    # one host of each leaf switch that has neither receiver
    beside = [1, *range(3 * ARITY, ARITY * ARITY, ARITY)]
    out: dict[str, list[float]] = {name: [] for name in MODELS}
    for count in senders:
        src = np.array([victim, receiver + 1, *beside[:count]], np.int32)
        dst = np.array([receiver, receiver, *[hot] * count], np.int32)
        routes = table.routes(src, dst)
        nbytes = np.full(
            len(src), 2 * NBYTES
        )  # the others go on until the victim has ended
        nbytes[0] = NBYTES
        flows = Flows(routes, nbytes, np.zeros(len(src)))
        for name, model in MODELS.items():
            out[name].append(NBYTES / float(model.finish_times(links, flows).finish[0]))
    return out


def draw(senders: Sequence[int], rates: dict[str, list[float]]) -> Figure:
    """The figure, for one column of a paper."""
    with matplotlib.rc_context(STYLE):
        figure = new_figure(2.0)
        ax = figure.subplots()
        line, bandwidth = np.linspace(2, max(senders), 200), 12.5  # GB/s
        ax.plot(line, bandwidth / line, color="0.6", linewidth=0.8, label="C / n")
        marks = {
            "fluid": ("o", COLOURS["I/O"], 5.5, "none"),
            "packet": ("s", COLOURS["EXCHANGE"], 3.0, COLOURS["EXCHANGE"]),
        }
        for name, (marker, colour, size, inside) in marks.items():
            ax.plot(
                senders,
                np.array(rates[name]) / 1e9,
                marker,
                color=colour,
                markersize=size,
                markerfacecolor=inside,
                label=name,
            )
        ax.set_xlabel("senders of the incast, n")
        ax.set_ylabel("rate of the victim (GB/s)")
        ax.set_ylim(0, bandwidth / 2 * 1.15)
        ax.set_xlim(-0.6, max(senders) + 0.6)
        ax.set_xticks(range(0, max(senders) + 1, 4))
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, loc="center right", bbox_to_anchor=(1.0, 0.66))
    return figure


def main(path: Path) -> None:
    """Write the figure as PNG, the same bytes every time."""
    figure = draw(SENDERS, victim_rates())
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, dpi=200, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_suffix(".png"))
