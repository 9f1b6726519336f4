"""Routings, one file each: which of the ways through a network messages take. To add one, write a
file and add it to the union."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from simshuffle.errors import InputError
from simshuffle.fabric.routing.adaptive import Adaptive
from simshuffle.fabric.routing.d_mod_k import DModK, ForwardingTable, SModK
from simshuffle.fabric.routing.dimension_order import DimensionOrder
from simshuffle.fabric.routing.ecmp import Ecmp
from simshuffle.fabric.routing.fabric import Fabric
from simshuffle.fabric.routing.forwarding_tables import ForwardingTables
from simshuffle.fabric.routing.min_hop import MinHop, RandomStatic
from simshuffle.fabric.routing.minimal import Minimal, Valiant
from simshuffle.fabric.routing.router import Router, RoutingRule
from simshuffle.fabric.routing.up_down import UpDown
from simshuffle.spec.library import by_kind
from simshuffle.spec.record import Spec
from simshuffle.spec.validation import validated

Routing = Annotated[
    DModK
    | SModK
    | RandomStatic
    | MinHop
    | Ecmp
    | UpDown
    | DimensionOrder
    | Minimal
    | Valiant
    | Adaptive
    | ForwardingTables,
    Field(discriminator="kind"),
]

_DEFAULTS: dict[str, RoutingRule] = {
    "d_mod_k": DModK(),
    "dimension_order": DimensionOrder(),
    "minimal": Minimal(),
    "min_hop": MinHop(),
}


def routing_by_topology(topology: Any) -> RoutingRule | None:
    """The routing of a network for which none is named, if its topology alone says it: it names
    another than D-mod-K, or says that it is a tree."""
    chosen = _DEFAULTS[topology.default_routing]
    return None if isinstance(chosen, DModK) and topology.height is None else chosen


def routing_of(topology: Any, fabric: Fabric) -> RoutingRule:
    """The routing of a network for which none is named: that of its topology; min-hop for files
    whose switches do not stand in levels."""
    return routing_by_topology(topology) or routing_by_levels(fabric)


def routing_by_levels(fabric: Fabric) -> RoutingRule:
    """D-mod-K for networks whose switches stand in levels, and min-hop for others."""
    return _DEFAULTS["d_mod_k" if fabric.switches.stand_in_levels() else "min_hop"]


class _Named(Spec):
    routing: Routing


def routing_named(text: str) -> RoutingRule:
    """The routing of a short form such as ``ecmp:queue_pairs=4``.

    Raises:
        InputError: there is none of that kind, or a key of it is not valid.
    """
    found, problems = validated({"routing": by_kind(text)}, _Named)
    if found is None or problems:
        raise InputError(problems, "command line")
    return found.routing


__all__ = [
    "Adaptive",
    "DModK",
    "DimensionOrder",
    "Ecmp",
    "Fabric",
    "ForwardingTable",
    "ForwardingTables",
    "MinHop",
    "Minimal",
    "RandomStatic",
    "Router",
    "Routing",
    "RoutingRule",
    "SModK",
    "UpDown",
    "Valiant",
    "routing_by_levels",
    "routing_by_topology",
    "routing_named",
    "routing_of",
]
