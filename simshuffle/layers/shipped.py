"""The networks that come with simshuffle, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from simshuffle.errors import InputError, Problem
from simshuffle.layers import (
    alexnet,
    cosmoflow,
    deepcam,
    densenet,
    inception,
    resnet,
    transformer,
    vgg,
    wide_resnet,
)
from simshuffle.layers.layer import LayerList
from simshuffle.spec.library import nearest

FAMILIES = (resnet, vgg, alexnet, wide_resnet, inception, densenet, deepcam, cosmoflow, transformer)
"""A module for each: what its docstring says, and builders by name in ``NETWORKS``."""
_BUILDERS: dict[str, Callable[[], LayerList]] = {
    name: build for family in FAMILIES for name, build in family.NETWORKS.items()
}
SHIPPED = tuple(_BUILDERS)
"""Names of all networks, family by family."""


@cache
def layer_list(name: str) -> LayerList:
    """The network of that name, built when it is first asked for.

    Raises:
        InputError: there is none.
    """
    if name not in _BUILDERS:
        remedy = nearest(name, sorted(_BUILDERS))
        raise InputError(Problem("", "no such list of layers", repr(name), remedy), "layers")
    return _BUILDERS[name]()
