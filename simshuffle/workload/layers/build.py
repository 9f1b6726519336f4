"""Chaining layers that fit together: what each has and does follows from what is said."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simshuffle.errors import InputError, Problem
from simshuffle.spec.library import suggest_nearest
from simshuffle.workload.layers.layer import INPUT, Kind, Layer, LayerList, Shape

ANY_EXTENTS = ("attention", "embedding", "other")
"""Kinds of layers that may take outputs with other extents together."""


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
        remedy = suggest_nearest(unknown[0], [*given][-8:]) if unknown else f"Write [{INPUT}]."
        yield Problem("after", f"'{name}' must come after layers before it", shown, remedy)
    elif joined([given[each] for each in after], kind) is None:
        shown = ", ".join(f"{each} {_written(given[each])}" for each in after)
        remedy = f"Let all have the extents {_written(given[after[0]][1:])}."
        yield Problem("after", f"'{name}' joins what has other extents", shown, remedy)


def shape_problems(layer: Layer, given: Mapping[str, Shape]) -> Iterator[Problem]:
    """What is wrong with the shapes of a layer, if ``given`` are the outputs of all before it."""
    shapes = [given[name] for name in layer.after]
    together = joined(shapes, layer.kind) or ()
    flat = len(together) != len(layer.input) and math.prod(together) == math.prod(layer.input)
    if together != layer.input and not flat:
        rule = f"'{layer.name}' takes another shape than {', '.join(layer.after)} gives"
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


Extents = int | tuple[int, ...]
"""The same for all extents, or one for each."""
MASK = 0.5
"""Values that a mask of one byte takes beside values of two."""
PLACES = 2
"""Values that the place of a maximum takes, an integer of 8 B, beside values of 4 B."""


class Builder:
    """A network that grows layer by layer.

    Each method adds one layer, after the last one if ``after`` says no other, and returns its name,
    which is ``name`` or its kind with a number, behind `prefix`.

    Attributes:
        prefix: of names, such as 'stage1.block0.'.
        last: name of the last layer.
    """

    def __init__(self, name: str, shape: Shape) -> None:
        self.name = name
        self.prefix = ""
        self.last = INPUT
        self._shapes: dict[str, Shape] = {INPUT: shape}
        self._layers: list[Layer] = []
        self._kept: set[str] = set()

    def shape(self, name: str = "") -> Shape:
        """Of what a layer gives; of the last one if none is named."""
        return self._shapes[name or self.last]

    def done(self) -> LayerList:
        """The network."""
        return LayerList(self.name, tuple(self._layers), self._shapes[INPUT])

    def layer(
        self,
        kind: Kind,
        output: Shape | None = None,
        *,
        name: str = "",
        after: str | Sequence[str] = "",
        taken: Shape | None = None,
        keeps_input: bool = False,
        keeps_output: bool = False,
        extra: float = 0.0,
        **values: Any,
    ) -> str:
        """Any layer.

        Args:
            output: shape of what it gives; if left out of what it takes, of one for an addition.
            after: one name, or several, whose outputs are joined along the channels.
            taken: shape of what it takes; if left out what ``after`` gives.
            keeps_input: whether what it takes is kept for the backward pass.
            keeps_output: whether what it gives is.
            extra: further values kept.

        Raises:
            InputError: it does not fit those before it.
        """
        names = (after or self.last,) if isinstance(after, str) else tuple(after)
        whole = self.prefix + name if name else self._numbered(kind)
        problems = list(name_problems(whole, kind, names, self._shapes))
        if problems:
            raise InputError(problems, self.name)
        given = [self._shapes[each] for each in names]
        taken = taken or joined(given, kind) or ()
        output = output or (given[0] if kind == "add" else taken)
        saved = extra + (self._newly_kept(names) if keeps_input else 0)
        if keeps_output:
            saved += math.prod(output)
            self._kept.add(whole)
        layer = Layer(whole, kind, names, taken, output, saved=saved, **values)
        problems = list(shape_problems(layer, self._shapes))
        if problems:
            raise InputError(problems, self.name)
        self._layers.append(layer)
        self._shapes[whole] = output
        self.last = whole
        return whole

    def _numbered(self, kind: str) -> str:
        number = 1
        while f"{self.prefix}{kind}{number}" in self._shapes:
            number += 1
        return f"{self.prefix}{kind}{number}"

    def _newly_kept(self, names: Sequence[str]) -> int:
        """Values of the outputs of ``names`` that no layer kept until now."""
        new = [name for name in dict.fromkeys(names) if name not in self._kept]
        self._kept.update(new)
        return sum(math.prod(self._shapes[name]) for name in new)

    def conv(
        self,
        outputs: int,
        kernel: Extents = 3,
        stride: Extents = 1,
        padding: Extents | None = None,
        *,
        groups: int = 1,
        dilation: int = 1,
        bias: bool = False,
        name: str = "",
        after: str = "",
    ) -> str:
        """A convolution; without ``padding`` extents stay as they are at a stride of 1."""
        shape = self.shape(after)
        taps = _by_extent(kernel, shape)
        steps = _by_extent(stride, shape)
        reach = tuple(dilation * (k - 1) + 1 for k in taps)
        if padding is None:
            extents = tuple(-(-n // s) for n, s in zip(shape[1:], steps, strict=True))
        else:
            extents = _extents(shape, reach, steps, _by_extent(padding, shape))
        weights = shape[0] // groups * math.prod(taps) * outputs
        return self.layer(
            "conv",
            (outputs, *extents),
            name=name,
            after=after,
            keeps_input=True,
            parameters=weights + outputs * bias,
            flops=2.0 * weights * math.prod(extents),
            kernel=reach,
            stride=steps,
        )

    def upconv(self, outputs: int) -> str:
        """A transposed convolution, of 3 in each extent, that makes extents twice as large."""
        shape = self.shape()
        weights = shape[0] * 3 ** len(shape[1:]) * outputs
        return self.layer(
            "conv",
            (outputs, *(2 * n for n in shape[1:])),
            keeps_input=True,
            parameters=weights,
            flops=2.0 * weights * math.prod(shape[1:]),
            kernel=_by_extent(3, shape),
        )

    def norm(self, name: str = "") -> str:
        """A norm with a factor and a summand for each channel."""
        return self.layer("norm", name=name, keeps_input=True, parameters=2 * self.shape()[0])

    def relu(self, name: str = "") -> str:
        """A ReLU, in place."""
        return self.layer("activation", name=name, keeps_output=True)

    def norm_relu(self) -> str:
        """The two, one after the other."""
        self.norm()
        return self.relu()

    def conv_norm_relu(
        self,
        outputs: int,
        kernel: Extents = 3,
        stride: Extents = 1,
        padding: Extents | None = None,
        *,
        groups: int = 1,
        after: str = "",
    ) -> str:
        """The three, one after the other."""
        self.conv(outputs, kernel, stride, padding, groups=groups, after=after)
        return self.norm_relu()

    def pool(
        self,
        kernel: Extents,
        stride: Extents = 1,
        padding: Extents = 0,
        *,
        mean: bool = False,
        up: bool = False,
        after: str = "",
    ) -> str:
        """A pooling by maximum or mean; with ``up`` what is left over at the end is pooled too."""
        shape = self.shape(after)
        taps, steps = _by_extent(kernel, shape), _by_extent(stride, shape)
        extents = _extents(shape, taps, steps, _by_extent(padding, shape), up)
        output = (shape[0], *extents)
        return self.layer(
            "pool",
            output,
            after=after,
            keeps_input=True,
            extra=0.0 if mean else PLACES * math.prod(output),
            kernel=taps,
            stride=steps,
        )

    def mean(self, after: str = "") -> str:
        """The mean over all extents."""
        return self.layer("pool", (self.shape(after)[0],), after=after)

    def linear(
        self,
        outputs: int,
        *,
        bias: bool = True,
        tied: bool = False,
        name: str = "",
        extra: float = 0.0,
        tensor: str = "",
    ) -> str:
        """A linear layer: of each token, or of all values of the sample if its shape has more than
        two numbers or one; ``tied`` to the weights of an embedding it has none of its own."""
        shape = self.shape()
        tokens = shape[1:] if len(shape) == 2 else ()
        inputs = shape[0] if tokens else math.prod(shape)
        weights = inputs * outputs
        return self.layer(
            "linear",
            (outputs, *tokens),
            name=name,
            keeps_input=True,
            parameters=0 if tied else weights + outputs * bias,
            flops=2.0 * weights * math.prod(tokens),
            extra=extra,
            tensor=tensor,
        )

    def perceptron(self, *outputs: int) -> str:
        """Linear layers of so many outputs, with a ReLU between each and the next."""
        for number, count in enumerate(outputs):
            if number:
                self.relu()
            self.linear(count)
        return self.last

    def add(self, one: str, other: str, *, mask: bool = False, name: str = "") -> str:
        """The sum of two; with ``mask`` what comes last went through a dropout."""
        extra = MASK * math.prod(self.shape(other)) if mask else 0.0
        return self.layer("add", name=name, after=(one, other), extra=extra)

    def shortcut(self, before: str, stride: int) -> str:
        """The sum of the last layer and ``before``, which goes through a convolution and a norm if
        its shape is another."""
        body = self.last
        if self.shape(before) != self.shape(body):
            self.conv(self.shape(body)[0], 1, stride, 0, name="shortcut.conv", after=before)
            before = self.norm("shortcut.norm")
        return self.add(body, before)

    def concat(self, *names: str) -> str:
        """Several, side by side along the channels."""
        return self.layer("concat", after=names)


def _by_extent(value: Extents, shape: Shape) -> tuple[int, ...]:
    return (value,) * (len(shape) - 1) if isinstance(value, int) else value


def _extents(
    shape: Shape,
    reach: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    up: bool = False,
) -> tuple[int, ...]:
    return tuple(
        (n + 2 * p - k + (s - 1) * up) // s + 1
        for n, k, s, p in zip(shape[1:], reach, stride, padding, strict=True)
    )
