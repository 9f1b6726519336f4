"""Recording the operations of a forward pass as layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from simshuffle.train.drafts import Draft, DraftList, Traced
from simshuffle.workload.layers import LayerList
from simshuffle.workload.layers.build import INDEX_VALUES, MASK_VALUES
from simshuffle.workload.layers.layer import Kind

# names of torch's operations; the activations that keep their output, and not their input, for the
# backward pass
_KEEP_OUTPUT = {"relu", "sigmoid", "tanh", "softmax", "threshold", "hardsigmoid"}
_ACTIVATIONS = {
    *_KEEP_OUTPUT,
    *(
        "gelu",
        "silu",
        "leaky_relu",
        "elu",
        "celu",
        "selu",
        "hardtanh",
        "hardswish",
        "mish",
    ),
    *("softplus", "log_sigmoid_forward", "prelu", "_prelu_kernel", "relu6", "glu"),
}
_SOFTMAX = {"_softmax", "_safe_softmax", "_log_softmax"}
# elementwise operations: those that may make a layer 'add', and all
_SUMS = {"add", "sub", "rsub"}
_ELEMENTWISE = {*_SUMS, "mul", "div", "where", "maximum", "minimum", "addcmul", "lerp"}


@dataclass
class _Call:
    """An operation of the forward pass that takes an output of a layer."""

    name: str  # as in torch's schema, without namespace and without a final _
    args: Any  # positional arguments
    sources: list[Traced]  # of the tensors it takes, those whose origin is known
    outputs: list[Traced]  # of `sources`, the outputs of layers; at least one
    result: torch.Tensor  # the first one, if there are several


class LayerReader(TorchDispatchMode):
    """Records all operations of a forward pass that runs in its context as layers.

    Operations that take neither a parameter of ``trained``, nor an input, nor what was
    made of these, are not recorded.

    Args:
        trained: parameters by their identity, ``id``.
        inputs: of the network; the first index of each is the sample of the batch. The
            first input decides the size of the batch and the shape of the network's
            input.

    Attributes:
        drafts: the layers recorded.
    """

    def __init__(
        self, trained: dict[int, torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drafts = DraftList(inputs[0])
        self._trained = trained
        self._uncounted = set(trained)  # identities of parameters that no layer has yet
        self._traced: dict[int, Traced] = {  # by the tensor's identity
            id(p): Traced(p, parameters=(key,)) for key, p in trained.items()
        }
        for tensor in inputs:
            self._traced[id(tensor)] = Traced(tensor, self.drafts.sample)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, record it if it takes a known tensor, return its result.

        Masks of dropouts are only marked. What just makes a new tensor (new_...,
        ..._like) is not recorded.
        """
        result = func(*args, **(kwargs or {}))
        tensors = [
            leaf
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, torch.Tensor)
        ]
        sources = [
            self._traced[id(tensor)] for tensor in tensors if id(tensor) in self._traced
        ]
        name = func._schema.name.partition("::")[2].removesuffix("_")
        if name == "bernoulli":
            self._traced[id(result)] = Traced(result, is_mask=True)
        elif sources and not name.startswith("new_") and not name.endswith("_like"):
            packet = func._overloadpacket
            first = result[0] if isinstance(result, tuple | list) else result
            flops = None
            if packet in flop_registry and any(
                source.draft is not None for source in sources
            ):
                total = flop_registry[packet](*args, **(kwargs or {}), out_val=first)
                flops = total / self.drafts.batch_size
            self._record(name, args, sources, result, flops)
        return result

    def _record(
        self,
        name: str,
        args: Any,
        sources: list[Traced],
        result: Any,
        flops: float | None,
    ) -> None:
        """Note what the ``result`` of an operation is from, and make or change a layer
        by it.

        An operation of parameters alone makes no layer, and a result without a tensor
        is ignored.

        Args:
            name: of the operation.
            args: its positional arguments.
            sources: of the tensors it takes, those whose origin is known.
            result: a tensor, or a tuple whose first element is the tensor that matters.
            flops: for each sample, of a product with a rule in torch's flop counter;
                else None.
        """
        first = result[0] if isinstance(result, tuple | list) else result
        if not isinstance(first, torch.Tensor):
            return
        outputs = [source for source in sources if source.draft is not None]
        if not outputs:  # made of parameters alone, as a transposed weight
            keys = tuple(key for source in sources for key in source.parameters)
            is_mask = any(source.is_mask for source in sources)
            self._trace(result, Traced(first, parameters=keys, is_mask=is_mask))
            return
        call = _Call(name, args, sources, outputs, first)
        draft = self._layer(call) if flops is None else self._product(call, flops)
        if draft is not None:
            self._count(draft, sources)
            self._trace(first, Traced(first, draft))
        else:
            self._combine(call, result)

    def _layer(self, call: _Call) -> Draft | None:
        """Add and return the layer that an operation is; None if it is none of the
        usual ones.

        A softmax in the middle of an attention belongs to that, and is no new layer.
        """
        name = call.name
        outputs = call.outputs
        result = call.result
        if name == "embedding":
            return self.drafts.add(
                "embedding", outputs, self.drafts.token_shape(result)
            )
        if "norm" in name and result.numel() == outputs[0].tensor.numel():
            shape = self.drafts.result_shape(outputs[0], result)
            return self.drafts.add("norm", outputs[:1], shape, keeps_input=True)
        if (
            name in _SOFTMAX
            and outputs[0].draft is not None
            and outputs[0].draft.scores
        ):
            outputs[0].draft.extra += result.numel() / self.drafts.batch_size
            return outputs[0].draft
        if name in _ACTIVATIONS or name in _SOFTMAX:
            keeps_output = name in _KEEP_OUTPUT or name in _SOFTMAX
            shape = self.drafts.result_shape(outputs[0], result)
            return self.drafts.add(
                "activation",
                outputs[:1],
                shape,
                keeps_input=not keeps_output,
                keeps_output=keeps_output,
            )
        if "_pool" in name or name == "mean":
            return self._pool(call)
        if name == "cat":
            return self._concatenation(call)
        return None

    def _concatenation(self, call: _Call) -> Draft:
        """Add and return the layer of a concatenation.

        It is one of channels where all tensors are outputs of layers that differ in
        channels alone; an embedding where some are parameters, as a class token; else
        'other'.
        """
        outputs = call.outputs
        only_outputs = len(outputs) == len(call.sources)
        only_outputs &= not any(source.parameters for source in call.sources)
        shapes = [self.drafts.result_shape(output, output.tensor) for output in outputs]
        shape = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        complete = (
            only_outputs
            and math.prod(shape) * self.drafts.batch_size == call.result.numel()
        )
        if complete and len({shape[1:] for shape in shapes}) == 1:
            return self.drafts.add("concat", outputs, shape)
        kind: Kind = "other" if only_outputs else "embedding"
        return self.drafts.add(
            kind, outputs, self.drafts.result_shape(outputs[0], call.result)
        )

    def _product(self, call: _Call, flops: float) -> Draft:
        """Add and return the layer that a product is: a convolution, a linear layer, or
        one of the two halves of an attention; ``flops`` are for each sample.
        """
        args = call.args
        outputs = call.outputs
        result = call.result
        has_weight = any(source.parameters for source in call.sources)
        if "conv" in call.name:
            weight = args[1]
            stride = args[3]
            dilation = args[5]
            transposed = args[6]
            # pixels from the first to the last that the kernel takes, along each axis
            extent = (
                d * (k - 1) + 1 for k, d in zip(weight.shape[2:], dilation, strict=True)
            )
            draft = self.drafts.add(
                "conv",
                outputs,
                self.drafts.sample_shape(result),
                keeps_input=True,
                kernel=tuple(extent),
                stride=() if transposed else tuple(stride),
            )
        elif has_weight or len(outputs) < 2:
            draft = self.drafts.add(
                "linear", outputs, self.drafts.token_shape(result), keeps_input=True
            )
        else:
            return self._attention(outputs, flops, result)
        draft.flops = flops
        return draft

    def _attention(
        self, outputs: list[Traced], flops: float, result: torch.Tensor
    ) -> Draft:
        """Return the one layer of two products of activations with a softmax between:
        made at the first product, complete at the second.

        At the second, the layer is moved to the end of the list. Any product of two
        activations counts as the first half if none of ``outputs`` is one.
        """
        first_halves = [
            output.draft
            for output in outputs
            if output.draft is not None and output.draft.scores
        ]
        if first_halves:
            draft = first_halves[0]
            other_outputs = [output for output in outputs if output.draft is not draft]
            draft.predecessors += [
                source
                for source in self.drafts.sources(other_outputs, True)
                if source not in draft.predecessors
            ]
            tokens = result.shape[-2]
            draft.output = (result.numel() // self.drafts.batch_size // tokens, tokens)
            draft.scores = False
            # a layer comes after its predecessors
            self.drafts.layers.remove(draft)
            self.drafts.layers.append(draft)
        else:
            draft = self.drafts.add(
                "attention",
                outputs,
                self.drafts.sample_shape(result),
                allow_slices=True,
                keeps_input=True,
            )
            draft.scores = True
            draft.heads = (
                result.numel() // self.drafts.batch_size // math.prod(result.shape[-2:])
            )
        draft.flops += flops
        return draft

    def _pool(self, call: _Call) -> Draft:
        """Add and return the layer of a pooling, or of a mean over pixels or tokens."""
        name = call.name
        args = call.args
        outputs = call.outputs
        result = call.result
        if (
            name == "mean"
            or name.startswith("_adaptive")
            or not isinstance(args[1], list | tuple)
        ):
            shape = self.drafts.sample_shape(result)
            while len(shape) > 1 and shape[-1] == 1:
                shape = shape[:-1]
            draft = self.drafts.add(
                "pool", outputs[:1], shape, keeps_input=name != "mean"
            )
        else:
            axes = result.ndim - 2
            kernel = tuple(args[1]) * (axes if len(args[1]) == 1 else 1)
            stride = tuple(args[2]) if len(args) > 2 and args[2] else kernel
            stride *= axes if len(stride) == 1 else 1
            shape = self.drafts.sample_shape(result)
            draft = self.drafts.add(
                "pool",
                outputs[:1],
                shape,
                keeps_input=True,
                kernel=kernel,
                stride=stride,
            )
        if "max" in name:
            draft.extra += INDEX_VALUES * math.prod(draft.output)
        return draft

    def _combine(self, call: _Call, result: Any) -> None:
        """Make or change a layer by an operation between layers: a sum, a dropout, a
        view, ...

        Elementwise operations of several layers' outputs make a layer: 'add' for a sum
        or difference of outputs as large as the result, else 'other'. An operation with a
        parameter may make one: 'embedding' if the parameter has a value for each token,
        'other' if it is not elementwise or takes the network's input. Every other
        operation belongs to the layer of its first known input; a dropout adds its mask
        to what that layer keeps.
        """
        sources = call.sources
        outputs = call.outputs
        tensor = call.result
        draft = outputs[0].draft
        assert draft is not None  # noqa: S101 - for mypy
        elementwise = call.name in _ELEMENTWISE
        parameters = [source for source in sources if source.parameters]
        if elementwise and any(output.draft is not draft for output in outputs):
            equal_sizes = all(
                output.tensor.numel() == tensor.numel() for output in outputs
            )
            kind: Kind = "add" if call.name in _SUMS and equal_sizes else "other"
            draft = self.drafts.add(
                kind, outputs, self.drafts.result_shape(outputs[0], tensor)
            )
        elif parameters:
            largest = (
                max(parameter.tensor.numel() for parameter in parameters)
                * self.drafts.batch_size
            )
            shape = self.drafts.result_shape(outputs[0], tensor)
            if not elementwise or draft is self.drafts.sample:
                draft = self.drafts.add("other", outputs[:1], shape)
            elif largest >= tensor.numel() and draft.output[1:]:
                # a parameter for each token, not for each channel
                draft = self.drafts.add("embedding", outputs[:1], shape)
        elif any(source.is_mask for source in sources):
            values = 1 + MASK_VALUES if draft.scores else MASK_VALUES
            draft.extra += values * tensor.numel() / self.drafts.batch_size
        self._count(draft, sources)
        self._trace(result, Traced(tensor, draft))

    def _count(self, draft: Draft, sources: list[Traced]) -> None:
        """Add the parameters among ``sources`` to a layer, unless an earlier one has
        them.
        """
        for key in (key for source in sources for key in source.parameters):
            if key in self._uncounted:
                self._uncounted.discard(key)
                draft.parameters += self._trained[key].numel()

    def _trace(self, result: Any, traced: Traced) -> None:
        """Note for every tensor in ``result`` that it is from where ``traced`` is from."""
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._traced[id(leaf)] = replace(traced, tensor=leaf)

    def network(self, name: str) -> LayerList:
        """Return the recorded layers as a list of this ``name``; parameters that no
        operation takes are a layer 'unused', the first.
        """
        return self.drafts.layer_list(
            name, unused=sum(self._trained[key].numel() for key in self._uncounted)
        )
