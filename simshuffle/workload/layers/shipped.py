"""The networks that come with simshuffle, by name, and those that a file writes as a
list of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Literal

from pydantic import Field

from simshuffle.errors import InputError, Problem
from simshuffle.spec.library import suggest_nearest
from simshuffle.spec.record import Count, NonNegative, Spec
from simshuffle.workload.layers import images, sciences, transformer
from simshuffle.workload.layers.build import Builder
from simshuffle.workload.layers.layer import INPUT, Kind, LayerList

FAMILIES = (images, sciences, transformer)
"""The modules of networks: each has a docstring for its page, and builders by name in
``NETWORKS``."""
_BUILDERS: dict[str, Callable[[], LayerList]] = {
    name: build for family in FAMILIES for name, build in family.NETWORKS.items()
}
SHIPPED = tuple(_BUILDERS)
"""The names of all networks, family by family."""


@cache
def layer_list(name: str) -> LayerList:
    """Return the network ``name``, one of `SHIPPED`.

    It is built when it is first asked for; each call returns the same object.

    Raises:
        InputError: if there is none.
    """
    if name not in _BUILDERS:
        remedy = suggest_nearest(name, sorted(_BUILDERS))
        raise InputError(
            Problem("", "no such list of layers", repr(name), remedy), "layers"
        )
    return _BUILDERS[name]()


_Shape = Annotated[list[Count], Field(min_length=1)]
_WholeNumber = Annotated[int, Field(ge=0, le=2**53)]
_KEEP_INPUT = ("conv", "linear", "norm", "pool", "attention")
_KEEP_OUTPUT = ("activation",)


class ModelLayer(Spec):
    """A layer of a network, for one sample. Shapes have the channels first, then the
    extents: pixels, voxels, or tokens.

    Attributes:
        name: unique in its network.
        kind: what it does.
        after: the layers whose outputs it takes, joined along the channels; 'input' is
            the sample. If left out the layer before.
        input: shape of what it takes; if left out what 'after' gives. The first layer
            has to say it.
        output: shape of what it gives; if left out the shape of what it takes, of one
            of them for an addition.
        parameters: that are trained.
        flops: floating-point operations of its forward pass; a multiplication and an
            addition are two.
        kernel: what a convolution or pooling reaches over, by extent.
        stride: of a convolution or pooling, by extent.
        saved: values kept for the backward pass. If left out, the input of a
            convolution, pooling, norm, attention or linear layer, and the output of an
            activation; what two layers keep counts once.
        tensor: what of it tensor parallelism divides: its outputs ('column') or its
            inputs ('row'); if left out neither.
        heads: of attention.
    """

    name: Annotated[str, Field(min_length=1)]
    kind: Kind
    after: list[str] | None = None
    input: _Shape | None = None
    output: _Shape | None = None
    parameters: _WholeNumber = 0
    flops: NonNegative = 0.0
    kernel: list[Count] = Field(default=[])
    stride: list[Count] = Field(default=[])
    saved: NonNegative | None = None
    tensor: Literal["column", "row"] | None = None
    heads: _WholeNumber = 0


def read_network(name: str, model_layers: Sequence[ModelLayer]) -> LayerList:
    """Return the network that is written as a list of layers.

    The sample has the input shape of the first layer.

    Args:
        name: of the network, and source of the errors.
        model_layers: first to last.

    Raises:
        InputError: if the list is empty, the first layer has no input shape, nothing is
            trained, a layer does not take what those before it give, or its name is
            another's. Only the first layer with problems is named. Paths begin with the
            layer's number, from 0; they are empty for problems of the whole list.
    """
    if not model_layers:
        raise InputError(
            Problem("", "must have at least one layer", "[]", "Add one."), name
        )
    if model_layers[0].input is None:
        remedy = "Write for example [3, 224, 224]."
        problem = Problem(
            "0.input", "the first layer must say the shape of a sample", "", remedy
        )
        raise InputError(problem, name)
    builder = Builder(name, tuple(model_layers[0].input))
    for index, layer in enumerate(model_layers):
        try:
            _add_layer(builder, layer)
        except InputError as error:
            problems = [problem.below(str(index)) for problem in error.problems]
            raise InputError(problems, name) from None
    network = builder.finish()
    if not network.parameters:
        remedy = "Write the parameters of its layers."
        raise InputError(
            Problem("", "must have something to train", "0 parameters", remedy), name
        )
    return network


def _add_layer(builder: Builder, layer: ModelLayer) -> None:
    """Add a layer that a file writes to ``builder``.

    Values that a file leaves out follow from the layers before it and from the kind, as
    `ModelLayer` says.

    Raises:
        InputError: if the layer does not fit those before it.
    """
    saves_by_kind = layer.saved is None
    builder.layer(
        layer.kind,
        None if layer.output is None else tuple(layer.output),
        name=layer.name,
        predecessors=builder.last if layer.after is None else layer.after,
        input_shape=None if layer.input is None else tuple(layer.input),
        keeps_input=saves_by_kind and layer.kind in _KEEP_INPUT,
        keeps_output=saves_by_kind and layer.kind in _KEEP_OUTPUT,
        extra=layer.saved or 0.0,
        parameters=layer.parameters,
        flops=layer.flops,
        kernel=tuple(layer.kernel),
        stride=tuple(layer.stride),
        tensor=layer.tensor or "",
        heads=layer.heads,
    )


def as_written(layers: LayerList) -> list[dict[str, object]]:
    """Return the layers of a network as plain values, a mapping for each layer.

    Keys that the reader fills in with the same value are left out; 'saved' is always
    there. A file has them so at ``workload.model.layers``; `read_network` reads the
    network back, but for its name.
    """
    plain_layers: list[dict[str, object]] = []
    last_name = INPUT
    for layer in layers.layers:
        layer_values: dict[str, object] = {"name": layer.name, "kind": layer.kind}
        # 'after' and shapes are left out where the reader fills in just these
        if layer.predecessors != (last_name,):
            layer_values["after"] = list(layer.predecessors)
        if not plain_layers or layer.input != layer.output:
            layer_values |= {"input": list(layer.input), "output": list(layer.output)}
        for key in ("parameters", "flops", "kernel", "stride", "tensor", "heads"):
            value = getattr(layer, key)
            if value:
                layer_values[key] = list(value) if isinstance(value, tuple) else value
        plain_layers.append({**layer_values, "saved": layer.saved})
        last_name = layer.name
    return plain_layers
