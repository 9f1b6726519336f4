"""Layers as drafts, which may still change while the operations of a network are
recorded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from simshuffle.workload.layers import INPUT, LayerList
from simshuffle.workload.layers.build import Builder
from simshuffle.workload.layers.layer import Kind, Shape


@dataclass(eq=False)
class Draft:
    """A layer that may still change: attention is made of several operations."""

    name: str
    kind: Kind
    predecessors: list[Draft]  # the layers whose outputs it takes
    output: Shape  # of one sample
    # keywords of `Builder.layer`: kernel, ...
    values: dict[str, Any] = field(default_factory=dict)
    keeps_input: bool = False
    keeps_output: bool = False
    extra: float = 0.0  # further values kept for the backward pass, for each sample
    parameters: int = 0
    flops: float = 0.0  # of the forward pass, for each sample
    heads: int = 0
    scores: bool = False  # whether it is the first half of an attention


@dataclass
class Traced:
    """A tensor and where it is from: a layer, or parameters alone."""

    tensor: torch.Tensor
    draft: Draft | None = None  # the layer; None if it is made of parameters alone
    parameters: tuple[int, ...] = ()  # the identities of those parameters
    is_mask: bool = False  # whether it is the mask of a dropout


class DraftList:
    """The layers of a network, in the order in which its forward pass runs them.

    Args:
        example: an input of the network; its first index is the sample of the batch. A
            tensor without indices is a batch of one.

    Attributes:
        batch_size: samples in the batch.
        layers: the drafts.
        sample: the network's input, as a draft that is not among the layers. A sample
            with a single index, (values,), has shape (1, values).
        path: paths of the modules being run, the innermost last, each with whether it
            has no submodules.
    """

    def __init__(self, example: torch.Tensor) -> None:
        self.batch_size = example.shape[0] if example.ndim else 1
        self.layers: list[Draft] = []
        self.path: list[tuple[str, bool]] = []
        self._names: Counter[str] = Counter()  # how often each name was given
        shape = self.sample_shape(example)
        self.sample = Draft(
            INPUT, "other", [], shape if len(shape) > 1 else (1, *shape)
        )

    def add(
        self,
        kind: Kind,
        outputs: list[Traced],
        shape: Shape,
        *,
        allow_slices: bool = False,
        keeps_input: bool = False,
        keeps_output: bool = False,
        **values: Any,
    ) -> Draft:
        """Append a new layer, and return it; a sum's inputs are brought to its shape.

        Args:
            kind: of the layer.
            outputs: the tensors it takes, outputs of earlier layers.
            shape: of its output for one sample.
            allow_slices: see `sources`.
            keeps_input, keeps_output: what it keeps for the backward pass.
            values: keywords of `Builder.layer` that are no fields of `Draft`, such as
                ``kernel``. Others, such as ``flops``, are set on the draft afterwards.
        """
        predecessors = self.sources(outputs, allow_slices)
        if kind == "add":
            predecessors = [self.reshape(source, shape) for source in predecessors]
        draft = Draft(
            self.unique_name(kind),
            kind,
            predecessors,
            shape,
            values,
            keeps_input,
            keeps_output,
        )
        self.layers.append(draft)
        return draft

    def unique_name(self, kind: str, path_entry: tuple[str, bool] | None = None) -> str:
        """Return a name for a layer that no other has: the module's path, with the
        ``kind`` if the module has submodules, and with a count if needed.

        ``path_entry`` is the module's entry of `path`, by default of the one that runs.
        """
        path, is_leaf = path_entry or (self.path[-1] if self.path else ("", False))
        base = path if is_leaf and path else f"{path}.{kind}".removeprefix(".")
        self._names[base] += 1
        return base if self._names[base] == 1 else f"{base}.{self._names[base]}"

    def sources(self, outputs: Iterable[Traced], allow_slices: bool) -> list[Draft]:
        """Return the layers that tensors are from, each once; none for parameters.

        A tensor that is not the whole output of its layer becomes a layer of its own,
        which is added and noted in ``outputs``, unless ``allow_slices``.
        """
        sources: list[Draft] = []
        for output in outputs:
            draft = output.draft
            if draft is None:
                continue
            size = output.tensor.numel() // self.batch_size
            if not allow_slices and size != math.prod(draft.output):
                output.draft = draft = self.reshape(
                    draft, self.sample_shape(output.tensor)
                )
            if draft not in sources:
                sources.append(draft)
        return sources

    def reshape(self, draft: Draft, shape: Shape) -> Draft:
        """Add and return a layer whose output is that of ``draft`` in another shape;
        ``draft`` itself if it has that shape.
        """
        if draft.output == shape:
            return draft
        path = self.path[-1][0] if self.path else ""
        view = Draft(self.unique_name("other", (path, False)), "other", [draft], shape)
        self.layers.append(view)
        return view

    def sample_shape(self, tensor: torch.Tensor) -> Shape:
        """Return the shape of one sample's part of ``tensor``; (1,) for a single value.

        It is (values,) if the first index is not as long as the batch.
        """
        if tensor.ndim and tensor.shape[0] == self.batch_size:
            return tuple(tensor.shape[1:]) or (1,)
        return (max(tensor.numel() // self.batch_size, 1),)

    def token_shape(self, tensor: torch.Tensor) -> Shape:
        """Return (features, tokens) of one sample, or (features,) of one token, for a
        ``tensor`` whose last index is the feature.
        """
        features = tensor.shape[-1]
        tokens = tensor.numel() // features // self.batch_size
        return (features, tokens) if tokens > 1 else (features,)

    def result_shape(self, source: Traced, result: torch.Tensor) -> Shape:
        """Return the shape of one sample's part of ``result``: that of the layer which
        ``source`` is from, if it has as many values.

        Else it is (features, tokens), if ``result`` has three indices and the last is
        as long as the layer's channels; else the `sample_shape` of ``result``.
        """
        assert source.draft is not None  # noqa: S101 - for mypy
        shape = source.draft.output
        if math.prod(shape) * self.batch_size == result.numel():
            return shape
        feature_last = result.ndim == 3 and result.shape[-1] == shape[0]
        return self.token_shape(result) if feature_last else self.sample_shape(result)

    def layer_list(self, name: str, unused: int) -> LayerList:
        """Return the layers as a network of this ``name``.

        If there are ``unused`` parameters, its first layer is 'unused' and has them.
        """
        builder = Builder(name, self.sample.output)
        if unused:
            builder.layer("other", name="unused", parameters=unused)
        split = _tensor_splits(self.layers)
        for draft in self.layers:
            builder.layer(
                draft.kind,
                draft.output,
                name=draft.name,
                predecessors=[source.name for source in draft.predecessors],
                keeps_input=draft.keeps_input,
                keeps_output=draft.keeps_output,
                extra=draft.extra,
                parameters=draft.parameters,
                flops=draft.flops,
                tensor=split.get(draft.name, ""),
                heads=draft.heads,
                **draft.values,
            )
        return builder.finish()


def _tensor_splits(drafts: Sequence[Draft]) -> dict[str, str]:
    """Return how tensor parallelism splits linear layers of tokens, and embeddings of
    the sample, by name; layers that it does not split are left out.

    A linear layer right after attention or an activation is 'row', split by inputs. One
    right before them or at the end, and an embedding, is 'column', split by outputs.
    """
    successors: dict[Draft, list[Draft]] = {}
    for draft in drafts:
        for source in draft.predecessors:
            successors.setdefault(source, []).append(draft)
    split = {}
    for draft in drafts:
        if draft.kind == "embedding" and draft.predecessors[0].name == INPUT:
            split[draft.name] = "column"
        if draft.kind != "linear" or len(draft.output) != 2:
            continue
        if draft.predecessors[0].kind in ("attention", "activation"):
            split[draft.name] = "row"
        elif all(
            taker.kind in ("attention", "activation")
            for taker in successors.get(draft, [])
        ):
            split[draft.name] = "column"
    return split
