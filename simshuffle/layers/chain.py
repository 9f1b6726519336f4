"""Whether the layers of a network fit together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from simshuffle.errors import Problem
from simshuffle.layers.layer import INPUT, Kind, Layer, LayerList, Shape
from simshuffle.spec.library import nearest

ANY_EXTENTS = ("attention", "embedding", "other")
"""Kinds of layers that may take outputs with other extents together."""


def chain_problems(network: LayerList) -> Iterator[Problem]:
    """What keeps it from being a network: names that are not unique or come later, and layers that
    do not take what others give. Paths begin with the number of the layer."""
    given = {INPUT: network.input}
    for number, layer in enumerate(network.layers):
        found = list(name_problems(layer.name, layer.kind, layer.after, given))
        found = found or list(shape_problems(layer, given))
        yield from (problem.below(str(number)) for problem in found)
        given[layer.name] = layer.output


def name_problems(
    name: str, kind: Kind, after: Sequence[str], given: Mapping[str, Shape]
) -> Iterator[Problem]:
    """What is wrong with the name of a layer and those it comes after, if ``given`` are the outputs
    of all before it."""
    if name in given:
        yield Problem("name", "must be unique in its network", repr(name), "Give it another name.")
    unknown = [each for each in after if each not in given]
    if unknown or not after:
        shown = repr(unknown[0]) if unknown else "none"
        remedy = nearest(unknown[0], [*given][-8:]) if unknown else f"Write [{INPUT}]."
        yield Problem("after", f"'{name}' must come after layers before it", shown, remedy)
    elif joined([given[each] for each in after], kind) is None:
        shown = ", ".join(f"{each} {_written(given[each])}" for each in after)
        remedy = f"Let all have the extents {_written(given[after[0]][1:])}."
        yield Problem("after", f"'{name}' joins what has other extents", shown, remedy)


def shape_problems(layer: Layer, given: Mapping[str, Shape]) -> Iterator[Problem]:
    """What is wrong with the shapes of a layer, if ``given`` are the outputs of all before it."""
    shapes = [given[name] for name in layer.after]
    together = joined(shapes, layer.kind) or ()
    same = together == layer.input
    if not same and (
        len(together) == len(layer.input) or math.prod(together) != math.prod(layer.input)
    ):
        rule = (
            f"'{layer.name}' takes another shape than {', '.join(layer.after)} gives, which is"
            f" {_written(together)}"
        )
        remedy = f"Write {_written(together)}, or leave it out."
        yield Problem("input", rule, _written(layer.input), remedy)
    if layer.kind == "add" and any(shape != layer.output for shape in shapes):
        rule = f"'{layer.name}' adds what has not the shape {_written(layer.output)} that it gives"
        remedy = f"Let all of them have the shape {_written(shapes[0])}."
        yield Problem("after", rule, ", ".join(map(_written, shapes)), remedy)
    extents = len(layer.input) - 1
    for key, value in (("kernel", layer.kernel), ("stride", layer.stride)):
        if value and len(value) != extents:
            rule = f"must have a number for each of the {extents} extents of '{layer.name}'"
            remedy = f"Write for example {_written(value[:1] * extents)}."
            yield Problem(key, rule, _written(value), remedy)


def joined(shapes: Sequence[Shape], kind: Kind) -> Shape | None:
    """What outputs of these shapes are together for a layer of that kind: along the channels. If
    their extents differ, None, or all values one after the other for attention and the like."""
    first = shapes[0]
    if all(shape[1:] == first[1:] for shape in shapes):
        return (sum(shape[0] for shape in shapes), *first[1:])
    return (sum(map(math.prod, shapes)),) if kind in ANY_EXTENTS else None


def _written(shape: Shape) -> str:
    return str(list(shape))
