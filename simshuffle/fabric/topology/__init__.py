"""Topologies: each a record of a few named numbers that builds a networkx graph. To add
one, write a file and add it to the union.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.fabric.topology.abci import Abci
from simshuffle.fabric.topology.custom import Custom
from simshuffle.fabric.topology.dln import Dln
from simshuffle.fabric.topology.dragonfly import Dragonfly, DragonflyPlus
from simshuffle.fabric.topology.fat_tree import FatTree
from simshuffle.fabric.topology.hyperx import HyperX
from simshuffle.fabric.topology.rail_optimised import RailOptimised
from simshuffle.fabric.topology.star import Star
from simshuffle.fabric.topology.torus import Torus

Topology = Annotated[
    Abci
    | FatTree
    | RailOptimised
    | Star
    | Dragonfly
    | DragonflyPlus
    | Torus
    | HyperX
    | Dln
    | Custom,
    Field(discriminator="kind"),
]

__all__ = [
    "Abci",
    "Custom",
    "Dln",
    "Dragonfly",
    "DragonflyPlus",
    "FatTree",
    "HyperX",
    "RailOptimised",
    "Star",
    "Topology",
    "Torus",
]
