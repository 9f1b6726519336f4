"""Chain layers that fit together; shapes, parameters, operations and saved values
follow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simshuffle.errors import InputError, Problem
from simshuffle.spec.library import suggest_nearest
from simshuffle.workload.layers.layer import INPUT, Kind, Layer, LayerList, Shape

ANY_EXTENTS = ("attention", "embedding", "other")
"""Kinds of layers that may take outputs of different extents together."""


def name_problems(
    name: str, kind: Kind, predecessors: Sequence[str], outputs: Mapping[str, Shape]
) -> Iterator[Problem]:
    """Yield the problems of a layer's name and of its predecessors.

    The name must be new. There must be predecessors, all must be in ``outputs``, and
    their extents must be equal, except for the kinds in `ANY_EXTENTS`.

    Args:
        name: of the layer.
        kind: of the layer.
        predecessors: names of the layers that it takes.
        outputs: shape of the output of each layer before it, by name, and of the
            sample, as `INPUT`.
    """
    if name in outputs:
        yield Problem(
            "name", "must be unique in its network", repr(name), "Give it another name."
        )
    unknown = [layer for layer in predecessors if layer not in outputs]
    if unknown or not predecessors:
        value = repr(unknown[0]) if unknown else "none"
        remedy = (
            suggest_nearest(unknown[0], [*outputs][-8:])
            if unknown
            else f"Write [{INPUT}]."
        )
        yield Problem(
            "after", f"'{name}' must come after layers before it", value, remedy
        )
    elif joined_shape([outputs[layer] for layer in predecessors], kind) is None:
        value = ", ".join(
            f"{layer} {_format_shape(outputs[layer])}" for layer in predecessors
        )
        remedy = (
            f"Let all have the extents {_format_shape(outputs[predecessors[0]][1:])}."
        )
        yield Problem("after", f"'{name}' joins what has other extents", value, remedy)


def shape_problems(layer: Layer, outputs: Mapping[str, Shape]) -> Iterator[Problem]:
    """Yield the problems of a layer's shapes.

    Its input must have the shape that its predecessors give together, or as many values
    in another number of dimensions. What an addition adds must have the shape of its
    output. Kernel and stride must have a number for each extent; whether the output
    follows from them is not checked.

    Args:
        layer: the layer; all its predecessors are in ``outputs``.
        outputs: shape of the output of each layer before it, by name.
    """
    shapes = [outputs[name] for name in layer.predecessors]
    joined = joined_shape(shapes, layer.kind) or ()
    is_flat = len(joined) != len(layer.input) and math.prod(joined) == math.prod(
        layer.input
    )
    if joined != layer.input and not is_flat:
        rule = f"'{layer.name}' takes another shape than {', '.join(layer.predecessors)} gives"
        remedy = f"Write {_format_shape(joined)}, or leave it out."
        yield Problem("input", rule, _format_shape(layer.input), remedy)
    if layer.kind == "add" and any(shape != layer.output for shape in shapes):
        rule = f"'{layer.name}' adds inputs of other shapes than its {_format_shape(layer.output)}"
        remedy = f"Let all of them have the shape {_format_shape(shapes[0])}."
        yield Problem("after", rule, ", ".join(map(_format_shape, shapes)), remedy)
    num_extents = len(layer.input) - 1
    for key, value in (("kernel", layer.kernel), ("stride", layer.stride)):
        if value and len(value) != num_extents:
            rule = f"must have a number for each of the {num_extents} extents of '{layer.name}'"
            remedy = f"Write for example {_format_shape(value[:1] * num_extents)}."
            yield Problem(key, rule, _format_shape(value), remedy)


def joined_shape(shapes: Sequence[Shape], kind: Kind) -> Shape | None:
    """Return the shape of several outputs together, for a layer of kind ``kind``.

    Outputs are joined along the channels. If their extents differ: all values one after
    the other for kinds in `ANY_EXTENTS`, and None for other kinds.
    """
    first = shapes[0]
    if all(shape[1:] == first[1:] for shape in shapes):
        return (sum(shape[0] for shape in shapes), *first[1:])
    return (sum(map(math.prod, shapes)),) if kind in ANY_EXTENTS else None


def _format_shape(shape: Shape) -> str:
    """Return a shape as a file writes it."""
    return str(list(shape))


Extents = int | tuple[int, ...]
"""A number for all extents, or one for each."""
MASK_VALUES = 0.5
"""Values that an element of a mask takes: 1 B beside values of 2 B."""
INDEX_VALUES = 2
"""Values that the index of a maximum takes: 8 B beside values of 4 B."""


class Builder:
    """A network that grows layer by layer.

    Each method adds one layer and returns its name. The layer takes the output of
    ``predecessor``, by default of the last layer. Its name is ``name``, by default its
    kind with a number, behind `prefix`.

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
        self._saved: set[str] = set()  # names of layers whose outputs are kept

    def shape(self, name: str = "") -> Shape:
        """Return the shape of the output of a layer, by default of the last one."""
        return self._shapes[name or self.last]

    def finish(self) -> LayerList:
        """Return the network, of all layers that were added so far."""
        return LayerList(self.name, tuple(self._layers), self._shapes[INPUT])

    def layer(
        self,
        kind: Kind,
        output: Shape | None = None,
        *,
        name: str = "",
        predecessors: str | Sequence[str] = "",
        input_shape: Shape | None = None,
        keeps_input: bool = False,
        keeps_output: bool = False,
        extra: float = 0.0,
        **values: Any,
    ) -> str:
        """Add any layer.

        Args:
            kind: its operation.
            output: shape of its output; if left out that of its input, for an addition
                that of one of its predecessors.
            name: of the layer.
            predecessors: one name, or several, whose outputs are joined along the
                channels.
            input_shape: if left out that of the outputs of its predecessors.
            keeps_input: whether its input is kept for the backward pass; what another
                layer keeps already does not count again.
            keeps_output: whether its output is kept for the backward pass.
            extra: further values kept, of one sample.
            **values: other fields of `Layer`; ``parameters`` and ``flops`` are 0 if
                left out.

        Raises:
            InputError: if it does not fit those before it.
        """
        if isinstance(predecessors, str):
            names: tuple[str, ...] = (predecessors or self.last,)
        else:
            names = tuple(predecessors)
        full_name = self.prefix + name if name else self._next_name(kind)
        problems = list(name_problems(full_name, kind, names, self._shapes))
        if problems:
            raise InputError(problems, self.name)
        shapes = [self._shapes[predecessor] for predecessor in names]
        input_shape = input_shape or joined_shape(shapes, kind) or ()
        output = output or (shapes[0] if kind == "add" else input_shape)
        saved = extra + (self._save_outputs(names) if keeps_input else 0)
        if keeps_output:
            saved += math.prod(output)
            self._saved.add(full_name)
        layer = Layer(
            full_name, kind, names, input_shape, output, saved=saved, **values
        )
        problems = list(shape_problems(layer, self._shapes))
        if problems:
            raise InputError(problems, self.name)
        self._layers.append(layer)
        self._shapes[full_name] = output
        self.last = full_name
        return full_name

    def _next_name(self, kind: str) -> str:
        """Return the first name of this kind with a number that is free."""
        number = 1
        while f"{self.prefix}{kind}{number}" in self._shapes:
            number += 1
        return f"{self.prefix}{kind}{number}"

    def _save_outputs(self, names: Sequence[str]) -> int:
        """Mark the outputs of ``names`` as kept, and return the values that were not
        kept yet.
        """
        newly_saved = [name for name in dict.fromkeys(names) if name not in self._saved]
        self._saved.update(newly_saved)
        return sum(math.prod(self._shapes[name]) for name in newly_saved)

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
        predecessor: str = "",
    ) -> str:
        """Add a convolution; without ``padding`` extents are divided by the stride,
        rounded up.
        """
        shape = self.shape(predecessor)
        kernel_sizes = _by_extent(kernel, shape)
        strides = _by_extent(stride, shape)
        # positions that the kernel spans, holes included
        spans = tuple(dilation * (size - 1) + 1 for size in kernel_sizes)
        if padding is None:
            extents = tuple(
                -(-extent // s) for extent, s in zip(shape[1:], strides, strict=True)
            )
        else:
            extents = _output_extents(shape, spans, strides, _by_extent(padding, shape))
        # each filter takes the channels of its group
        weights = shape[0] // groups * math.prod(kernel_sizes) * outputs
        return self.layer(
            "conv",
            (outputs, *extents),
            name=name,
            predecessors=predecessor,
            keeps_input=True,
            parameters=weights + outputs * bias,
            flops=2.0 * weights * math.prod(extents),
            kernel=spans,
            stride=strides,
        )

    def upconv(self, outputs: int) -> str:
        """Add a transposed convolution, of 3 in each extent, that makes extents twice
        as large.
        """
        shape = self.shape()
        # each input position is multiplied with the whole kernel
        weights = shape[0] * 3 ** len(shape[1:]) * outputs
        return self.layer(
            "conv",
            (outputs, *(2 * extent for extent in shape[1:])),
            keeps_input=True,
            parameters=weights,
            flops=2.0 * weights * math.prod(shape[1:]),
            kernel=_by_extent(3, shape),
        )

    def norm(self, name: str = "") -> str:
        """Add a norm with a factor and a summand for each channel."""
        return self.layer(
            "norm", name=name, keeps_input=True, parameters=2 * self.shape()[0]
        )

    def relu(self, name: str = "") -> str:
        """Add a ReLU, in place."""
        return self.layer("activation", name=name, keeps_output=True)

    def norm_relu(self) -> str:
        """Add a norm, then a ReLU."""
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
        predecessor: str = "",
    ) -> str:
        """Add a convolution, a norm and a ReLU, one after the other."""
        self.conv(
            outputs, kernel, stride, padding, groups=groups, predecessor=predecessor
        )
        return self.norm_relu()

    def pool(
        self,
        kernel: Extents,
        stride: Extents = 1,
        padding: Extents = 0,
        *,
        mean: bool = False,
        up: bool = False,
        predecessor: str = "",
    ) -> str:
        """Add a pooling by maximum or mean; with ``up`` an incomplete last window is
        pooled too.

        Both keep their input for the backward pass; a maximum keeps its indices, too.
        """
        shape = self.shape(predecessor)
        kernel_sizes = _by_extent(kernel, shape)
        strides = _by_extent(stride, shape)
        extents = _output_extents(
            shape, kernel_sizes, strides, _by_extent(padding, shape), up
        )
        output = (shape[0], *extents)
        return self.layer(
            "pool",
            output,
            predecessors=predecessor,
            keeps_input=True,
            extra=0.0 if mean else INDEX_VALUES * math.prod(output),
            kernel=kernel_sizes,
            stride=strides,
        )

    def mean(self, predecessor: str = "") -> str:
        """Add the mean over all extents."""
        return self.layer(
            "pool", (self.shape(predecessor)[0],), predecessors=predecessor
        )

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
        """Add a linear layer, of each token or of all values of the sample.

        It is of each token if the shape is (features, tokens). If it is ``tied`` to the
        weights of an embedding, it has no parameters of its own, whatever ``bias`` is.
        """
        shape = self.shape()
        # (features, tokens) is taken token by token, any other shape as one vector
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
        """Add linear layers with these numbers of outputs, and a ReLU between each and
        the next.
        """
        for index, num_outputs in enumerate(outputs):
            if index:
                self.relu()
            self.linear(num_outputs)
        return self.last

    def add(
        self, shortcut: str, body: str, *, mask: bool = False, name: str = ""
    ) -> str:
        """Add the sum of two layers; with ``mask`` the body went through a dropout.

        The mask of the dropout is then kept for the backward pass.
        """
        extra = MASK_VALUES * math.prod(self.shape(body)) if mask else 0.0
        return self.layer("add", name=name, predecessors=(shortcut, body), extra=extra)

    def shortcut(self, start: str, stride: int) -> str:
        """Add the sum of the last layer and ``start``, where a block began.

        If its shape is another, ``start`` goes through a convolution of this stride and
        a norm. Their names are fixed: each block needs a `prefix` of its own.
        """
        body = self.last
        if self.shape(start) != self.shape(body):
            outputs = self.shape(body)[0]
            self.conv(outputs, 1, stride, 0, name="shortcut.conv", predecessor=start)
            start = self.norm("shortcut.norm")
        return self.add(body, start)

    def concat(self, *names: str) -> str:
        """Add a concatenation of layers along the channels."""
        return self.layer("concat", predecessors=names)


def _by_extent(value: Extents, shape: Shape) -> tuple[int, ...]:
    """Return a number for each extent of ``shape``."""
    return (value,) * (len(shape) - 1) if isinstance(value, int) else value


def _output_extents(
    shape: Shape,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    up: bool = False,
) -> tuple[int, ...]:
    """Return the extents that a convolution or pooling gives, rounded down, or up if
    ``up``.
    """
    # floor((n + 2 p - k) / s) + 1
    return tuple(
        (n + 2 * p - k + (s - 1) * up) // s + 1
        for n, k, s, p in zip(shape[1:], kernel, stride, padding, strict=True)
    )
