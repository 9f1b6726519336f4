"""Topologies: each a record of a few named numbers that builds a networkx graph. To add one, write
a file and add it to the union."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.topology.abci import Abci
from simshuffle.topology.custom import Custom
from simshuffle.topology.fat_tree import FatTree
from simshuffle.topology.star import Star

Topology = Annotated[Abci | FatTree | Star | Custom, Field(discriminator="kind")]

__all__ = ["Abci", "Custom", "FatTree", "Star", "Topology"]
