"""Routing kinds, one file each: a routing selects the route of each message among the
routes that a network offers. To add a kind, write a file and add it to the union
`Routing`.
"""

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
from simshuffle.spec.library import parse_kind
from simshuffle.spec.record import Spec
from simshuffle.spec.validation import validate_record

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
    """Return the default routing of a network where its topology alone decides it, else
    None.

    The topology decides if its default is another kind than D-mod-K, or if it says that
    it is a tree (has a ``height``). Keys of the routing have their defaults.
    """
    topology_default = _DEFAULTS[topology.default_routing]
    return (
        None
        if isinstance(topology_default, DModK) and topology.height is None
        else topology_default
    )


def routing_of_network(topology: Any, fabric: Fabric) -> RoutingRule:
    """Return the routing of a network for which the scenario names none: the default of
    its topology, if the topology alone decides; else D-mod-K if the switches of
    ``fabric`` stand in levels, and min-hop if not.
    """
    return routing_by_topology(topology) or routing_by_levels(fabric)


def routing_by_levels(fabric: Fabric) -> RoutingRule:
    """Return D-mod-K for a network whose switches stand in levels, else min-hop."""
    return _DEFAULTS["d_mod_k" if fabric.switches.stand_in_levels() else "min_hop"]


class _RoutingHolder(Spec):
    """A record with nothing but a routing, to validate one by itself."""

    routing: Routing


def parse_routing_rule(text: str) -> RoutingRule:
    """Parse the short form of a routing, such as ``ecmp:queue_pairs=4``.

    Keys that are not in ``text`` have their defaults.

    Raises:
        InputError: no routing has that kind, or a key of it is not valid.
    """
    holder, problems = validate_record({"routing": parse_kind(text)}, _RoutingHolder)
    if holder is None or problems:
        raise InputError(problems, "command line")
    return holder.routing


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
    "parse_routing_rule",
    "routing_by_levels",
    "routing_by_topology",
    "routing_of_network",
]
