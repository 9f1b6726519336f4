"""Seeing the operations of a forward pass, and making layers of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from simshuffle.workload.layers import INPUT, LayerList
from simshuffle.workload.layers.build import INDEX_VALUES, MASK_VALUES, Builder
from simshuffle.workload.layers.layer import Kind, Shape

_KEEP_OUTPUT = {"relu", "sigmoid", "tanh", "softmax", "threshold", "hardsigmoid"}
_ACTIVATIONS = {
    *_KEEP_OUTPUT,
    *("gelu", "silu", "leaky_relu", "elu", "celu", "selu", "hardtanh", "hardswish", "mish"),
    *("softplus", "log_sigmoid_forward", "prelu", "_prelu_kernel", "relu6", "glu"),
}
_SOFTMAX = {"_softmax", "_safe_softmax", "_log_softmax"}
_SUMS = {"add", "sub", "rsub"}
_ELEMENTWISE = {*_SUMS, "mul", "div", "where", "maximum", "minimum", "addcmul", "lerp"}


@dataclass(eq=False)
class _Draft:
    """A layer that may still change: attention is several operations."""

    name: str
    kind: Kind
    after: list[_Draft]
    output: Shape
    values: dict[str, Any] = field(default_factory=dict)
    keeps_input: bool = False
    keeps_output: bool = False
    extra: float = 0.0
    parameters: int = 0
    flops: float = 0.0
    heads: int = 0
    scores: bool = False
    """Whether it is the first half of an attention."""


@dataclass
class _Traced:
    """Where a tensor is from: a layer, or parameters alone."""

    tensor: torch.Tensor
    draft: _Draft | None = None
    parameters: tuple[int, ...] = ()
    is_mask: bool = False


@dataclass
class _Call:
    """An operation."""

    name: str
    args: Any
    found: list[_Traced]  # of what it takes, that which is known
    drafted: list[_Traced]  # of these, what layers put out; at least one
    out: torch.Tensor


class LayerReader(TorchDispatchMode):
    """Sees all operations of a forward pass, and makes layers of them.

    Args:
        trained: parameters by their identity.
        inputs: of the network; the first number of their shapes is the batch's size.
    """

    def __init__(self, trained: dict[int, torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.path: list[tuple[str, bool]] = []
        self._batch = inputs[0].shape[0] if inputs[0].ndim else 1
        self._trained = trained
        self._unseen = set(trained)
        self._drafts: list[_Draft] = []
        self._names: Counter[str] = Counter()
        self._traced: dict[int, _Traced] = {
            id(p): _Traced(p, parameters=(key,)) for key, p in trained.items()
        }
        shape = self._shape(inputs[0])
        self._sample = _Draft(INPUT, "other", [], shape if len(shape) > 1 else (1, *shape))
        for each in inputs:
            self._traced[id(each)] = _Traced(each, self._sample)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        found = [self._traced[id(t)] for t in given if id(t) in self._traced]
        name = func._schema.name.partition("::")[2].removesuffix("_")
        if name == "bernoulli":
            self._traced[id(out)] = _Traced(out, is_mask=True)
        elif found and not name.startswith("new_") and not name.endswith("_like"):
            self._see(func, name, args, kwargs or {}, found, out)
        return out

    def _see(
        self, func: Any, name: str, args: Any, kwargs: Any, found: list[_Traced], out: Any
    ) -> None:
        first = out[0] if isinstance(out, tuple | list) else out
        if not isinstance(first, torch.Tensor):
            return
        drafted = [each for each in found if each.draft is not None]
        if not drafted:  # of parameters alone, as a weight that is turned around
            keys = tuple(key for each in found for key in each.parameters)
            masked = any(each.is_mask for each in found)
            self._note(out, _Traced(first, parameters=keys, is_mask=masked))
            return
        call, packet, flops = _Call(name, args, found, drafted, first), func._overloadpacket, None
        if packet in flop_registry:
            flops = flop_registry[packet](*args, **kwargs, out_val=first) / self._batch
        draft = self._layer(call) if flops is None else self._product(call, flops)
        if draft is not None:
            self._count(draft, found)
            self._note(first, _Traced(first, draft))
        else:
            self._combine(call, out)

    def _layer(self, call: _Call) -> _Draft | None:
        """The layer that an operation is; None if it is none of the usual ones."""
        name, drafted, out = call.name, call.drafted, call.out
        if name == "embedding":
            return self._new("embedding", drafted, self._by_token(out))
        if "norm" in name and out.numel() == drafted[0].tensor.numel():
            shape = self._like(drafted[0], out)
            return self._new("norm", drafted[:1], shape, keeps_input=True)
        if name in _SOFTMAX and drafted[0].draft is not None and drafted[0].draft.scores:
            drafted[0].draft.extra += out.numel() / self._batch
            return drafted[0].draft
        if name in _ACTIVATIONS or name in _SOFTMAX:
            of_output = name in _KEEP_OUTPUT or name in _SOFTMAX
            shape = self._like(drafted[0], out)
            return self._new(
                "activation",
                drafted[:1],
                shape,
                keeps_input=not of_output,
                keeps_output=of_output,
            )
        if "_pool" in name or name == "mean":
            return self._pool(call)
        if name == "cat":
            known = len(drafted) == len(call.found)
            known &= not any(each.parameters for each in call.found)
            shapes = [self._like(each, each.tensor) for each in drafted]
            shape = (sum(each[0] for each in shapes), *shapes[0][1:])
            same = known and math.prod(shape) * self._batch == out.numel()
            joins = same and len({each[1:] for each in shapes}) == 1
            kind: Kind = "concat" if joins else "embedding" if not known else "other"
            return self._new(kind, drafted, shape if joins else self._like(drafted[0], out))
        return None

    def _product(self, call: _Call, flops: float) -> _Draft:
        args, drafted, out = call.args, call.drafted, call.out
        weighted = any(each.parameters for each in call.found)
        if "conv" in call.name:
            weight, stride, transposed = args[1], args[3], args[6]
            reach = (d * (k - 1) + 1 for k, d in zip(weight.shape[2:], args[5], strict=True))
            draft = self._new(
                "conv",
                drafted,
                self._shape(out),
                keeps_input=True,
                kernel=tuple(reach),
                stride=() if transposed else tuple(stride),
            )
        elif weighted or len(drafted) < 2:
            draft = self._new("linear", drafted, self._by_token(out), keeps_input=True)
        else:
            return self._attention(drafted, flops, out)
        draft.flops = flops
        return draft

    def _attention(self, drafted: list[_Traced], flops: float, out: torch.Tensor) -> _Draft:
        """Two products of activations with a softmax between: one layer."""
        begun = [each.draft for each in drafted if each.draft is not None and each.draft.scores]
        if begun:
            draft = begun[0]
            others = [each for each in drafted if each.draft is not draft]
            draft.after += [s for s in self._sources(others, True) if s not in draft.after]
            tokens = out.shape[-2]
            draft.output = (out.numel() // self._batch // tokens, tokens)
            draft.scores = False
            self._drafts.remove(draft)  # after what it takes
            self._drafts.append(draft)
        else:
            draft = self._new(
                "attention", drafted, self._shape(out), in_parts=True, keeps_input=True
            )
            draft.scores = True
            draft.heads = out.numel() // self._batch // math.prod(out.shape[-2:])
        draft.flops += flops
        return draft

    def _pool(self, call: _Call) -> _Draft | None:
        name, args, drafted, out = call.name, call.args, call.drafted, call.out
        shape = self._shape(out)
        while len(shape) > 1 and shape[-1] == 1:
            shape = shape[:-1]
        extents = out.ndim - 2
        if name == "mean" or name.startswith("_adaptive") or not isinstance(args[1], list | tuple):
            draft = self._new("pool", drafted[:1], shape, keeps_input=name != "mean")
        else:
            kernel = tuple(args[1]) * (extents if len(args[1]) == 1 else 1)
            given = tuple(args[2]) if len(args) > 2 and args[2] else kernel
            stride = given * (extents if len(given) == 1 else 1)
            shape = self._shape(out)
            draft = self._new(
                "pool", drafted[:1], shape, keeps_input=True, kernel=kernel, stride=stride
            )
        if "max" in name:
            draft.extra += INDEX_VALUES * math.prod(draft.output)
        return draft

    def _combine(self, call: _Call, out: Any) -> None:
        """What an operation between layers means: a sum, a dropout, another view, ..."""
        name, found, drafted, first = call.name, call.found, call.drafted, call.out
        one = drafted[0]
        assert one.draft is not None  # noqa: S101 - for mypy
        draft, elementwise = one.draft, name in _ELEMENTWISE
        of_parameters = [each for each in found if each.parameters]
        if elementwise and any(each.draft is not draft for each in drafted):
            alike = all(each.tensor.numel() == first.numel() for each in drafted)
            kind: Kind = "add" if name in _SUMS and alike else "other"
            draft = self._new(kind, drafted, self._like(one, first))
        elif of_parameters:
            whole = max(each.tensor.numel() for each in of_parameters) * self._batch
            if not elementwise or draft is self._sample:
                draft = self._new("other", [one], self._like(one, first))
            elif whole >= first.numel() and draft.output[1:]:  # of each token, not of each channel
                draft = self._new("embedding", [one], self._like(one, first))
        elif any(each.is_mask for each in found):
            kept = 1 + MASK_VALUES if draft.scores else MASK_VALUES
            draft.extra += kept * first.numel() / self._batch
        self._count(draft, found)
        self._note(out, _Traced(first, draft))

    def _new(
        self,
        kind: Kind,
        drafted: list[_Traced],
        output: Shape,
        *,
        in_parts: bool = False,
        keeps_input: bool = False,
        keeps_output: bool = False,
        **values: Any,
    ) -> _Draft:
        after = self._sources(drafted, in_parts)
        if kind == "add":
            after = [self._turned(source, output) for source in after]
        draft = _Draft(self._name(kind), kind, after, output, values, keeps_input, keeps_output)
        self._drafts.append(draft)
        return draft

    def _name(self, kind: str, at: tuple[str, bool] | None = None) -> str:
        path, is_leaf = at or (self.path[-1] if self.path else ("", False))
        base = path if is_leaf and path else f"{path}.{kind}".removeprefix(".")
        self._names[base] += 1
        return base if self._names[base] == 1 else f"{base}.{self._names[base]}"

    def _sources(self, drafted: Iterable[_Traced], in_parts: bool) -> list[_Draft]:
        """The layers that tensors are from. One that is not the whole output of its layer is a
        layer of its own, unless they may be taken ``in_parts``."""
        sources: list[_Draft] = []
        for each in drafted:
            draft = each.draft
            if draft is None:
                continue
            size = each.tensor.numel() // self._batch
            if not in_parts and size != math.prod(draft.output):
                each.draft = draft = self._turned(draft, self._shape(each.tensor))
            if draft not in sources:
                sources.append(draft)
        return sources

    def _turned(self, draft: _Draft, shape: Shape) -> _Draft:
        """The layer whose output is that of another in another shape; itself if it has that."""
        if draft.output == shape:
            return draft
        path = self.path[-1][0] if self.path else ""
        turned = _Draft(self._name("other", (path, False)), "other", [draft], shape)
        self._drafts.append(turned)
        return turned

    def _count(self, draft: _Draft, found: list[_Traced]) -> None:
        """Add the parameters that an operation takes, unless an earlier layer has them."""
        for key in (key for each in found for key in each.parameters):
            if key in self._unseen:
                self._unseen.discard(key)
                draft.parameters += self._trained[key].numel()

    def _note(self, out: Any, traced: _Traced) -> None:
        for each in tree_leaves(out):
            if isinstance(each, torch.Tensor):
                self._traced[id(each)] = replace(traced, tensor=each)

    def _shape(self, tensor: torch.Tensor) -> Shape:
        """Of a sample, if the channels come after the batch."""
        if tensor.ndim and tensor.shape[0] == self._batch:
            return tuple(tensor.shape[1:]) or (1,)
        return (max(tensor.numel() // self._batch, 1),)

    def _by_token(self, tensor: torch.Tensor) -> Shape:
        """Of a sample, if features come last."""
        features = tensor.shape[-1]
        tokens = tensor.numel() // features // self._batch
        return (features, tokens) if tokens > 1 else (features,)

    def _like(self, traced: _Traced, out: torch.Tensor) -> Shape:
        """The shape of a result: that of the layer it is from, if it is as large."""
        assert traced.draft is not None  # noqa: S101 - for mypy
        shape = traced.draft.output
        if math.prod(shape) * self._batch == out.numel():
            return shape
        by_token = out.ndim == 3 and out.shape[-1] == shape[0]
        return self._by_token(out) if by_token else self._shape(out)

    def network(self, name: str) -> LayerList:
        """The layers that were seen."""
        net = Builder(name, self._sample.output)
        unused = sum(self._trained[key].numel() for key in self._unseen)
        if unused:
            net.layer("other", name="unused", parameters=unused)
        split = _tensor_splits(self._drafts)
        for draft in self._drafts:
            net.layer(
                draft.kind,
                draft.output,
                name=draft.name,
                predecessors=[each.name for each in draft.after],
                keeps_input=draft.keeps_input,
                keeps_output=draft.keeps_output,
                extra=draft.extra,
                parameters=draft.parameters,
                flops=draft.flops,
                tensor=split.get(draft.name, ""),
                heads=draft.heads,
                **draft.values,
            )
        return net.finish()


def _tensor_splits(drafts: Sequence[_Draft]) -> dict[str, str]:
    """How linear layers of tokens and embeddings are split: by their outputs before attention or an
    activation and at the end, by their inputs after them."""
    takers: dict[_Draft, list[_Draft]] = {}
    for draft in drafts:
        for source in draft.after:
            takers.setdefault(source, []).append(draft)
    split = {}
    for draft in drafts:
        if draft.kind == "embedding" and draft.after[0].name == INPUT:
            split[draft.name] = "column"
        if draft.kind != "linear" or len(draft.output) != 2:
            continue
        if draft.after[0].kind in ("attention", "activation"):
            split[draft.name] = "row"
        elif all(each.kind in ("attention", "activation") for each in takers.get(draft, [])):
            split[draft.name] = "column"
    return split
