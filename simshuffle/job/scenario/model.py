"""The model: a neural network as the cluster sees it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import AfterValidator, Discriminator, Tag, WithJsonSchema, model_validator

from simshuffle.errors import InputError, Problem
from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.spec.record import (
    Count,
    NonNegative,
    PositiveNBytes,
    PositiveSeconds,
    Seconds,
    Sourced,
    Spec,
)
from simshuffle.spec.units import Dimension, readable
from simshuffle.workload.layers import (
    INPUT,
    SHIPPED,
    Layer,
    LayerList,
    ModelLayer,
    layer_list,
    read_network,
)

VALUE_NBYTES = 4
"""Bytes of a parameter or an input of a model that does not say how many it has."""
FIXED = 11.3e-3
"""s of an iteration that do not shrink with the batch, as a prior: the mean of 10.5 and
12.1 ms of ResNet-50 on DGX A100 and DGX-2H, each fitted on two batch sizes (MLPerf
Training v0.7).
"""
MOST_FIXED = 0.5
"""The share of a measured step that the prior takes at most; so tiny models keep a
slope.
"""
WIDTHS = (1, 2, 4, 8)
"""Bytes that a gradient of one parameter may have."""
ROUNDED, NOTED = 0.01, 0.005
"""Share by which a gradient size, which people write with two or three digits, may miss
the bytes of the layers' parameters, unless it is these with two digits; and from which
on it is said.
"""
PIECES = 64
"""Equal parts of a gradient of whose layers nothing is known."""


class StepTimes(Spec):
    """Seconds on one accelerator.

    A pass over b samples takes the time of one more sample, b times, and its part of
    ``fixed``. With ``measured_batch``, forward and backward are the time of such a
    batch over its samples, so the fixed part is in them. If ``fixed`` is not given, it
    is then `FIXED`, at most `MOST_FIXED` of the step. Without a measured_batch it is 0
    s.

    Attributes:
        forward: of the forward pass for one sample.
        backward: of the backward pass for one sample; if left out twice 'forward', the
            usual rule.
        update: of the update for one iteration; 0 s where it is in the times from which
            'forward' is.
        inference: of a pass without training for one sample; if left out 'forward'.
        fixed: what an iteration takes whatever its batch (kernel launches, small
            layers). If left out, a prior with 'measured_batch', else 0 s.
        measured_batch: the batch whose time over its samples 'forward' and 'backward'
            are.
    """

    forward: PositiveSeconds
    backward: PositiveSeconds | None = None
    update: Seconds = 0.0
    inference: PositiveSeconds | None = None
    fixed: Seconds | None = None
    measured_batch: Count | None = None

    @model_validator(mode="after")
    def _something_grows(self) -> StepTimes:
        """Refuse fixed seconds that are no less than the measured step."""
        if (
            self.measured_batch is not None
            and self.fixed_seconds >= self._step_measured
        ):
            step = f"{self._step_measured:.6g} s of a step of measured_batch samples"
            raise ValueError(f"fixed must be less than the {step}")
        return self

    @property
    def backward_seconds(self) -> float:
        """Seconds of the backward pass for one sample, as given; else twice the forward
        pass.
        """
        return 2 * self.forward if self.backward is None else self.backward

    @property
    def _step_measured(self) -> float:
        """Seconds of both passes over ``measured_batch`` samples; over one if None."""
        return (self.measured_batch or 1) * (self.forward + self.backward_seconds)

    @property
    def fixed_seconds(self) -> float:
        """Seconds of an iteration that do not shrink with its batch: ``fixed``, else
        the prior, or 0 without ``measured_batch``. The update is not among them.
        """
        if self.fixed is not None:
            return self.fixed
        if self.measured_batch is None:
            return 0.0
        return min(FIXED, MOST_FIXED * self._step_measured)

    @property
    def per_sample(self) -> float:
        """Seconds that one more sample adds to the forward and backward pass."""
        return self._slope * (self.forward + self.backward_seconds)

    @property
    def _slope(self) -> float:
        """The share of the given seconds for a sample that grows with the batch."""
        if self.measured_batch is None:
            return 1.0
        return 1.0 - self.fixed_seconds / self._step_measured

    def forward_of(self, samples: Ints64) -> Floats:
        """Return the seconds of the forward pass of batches of ``samples``, of any
        shape, with its part of the fixed seconds; 0 s for a batch of none.
        """
        return self._pass(samples, self.forward)

    def backward_of(self, samples: Ints64) -> Floats:
        """Return the seconds of the backward pass of batches of ``samples``, with its
        part of the fixed seconds; 0 s for a batch of none.
        """
        return self._pass(samples, self.backward_seconds)

    def inference_of(self, samples: Ints64) -> Floats:
        """Return the seconds of a forward pass without training of batches of
        ``samples``; fixed seconds and batches of none as in `forward_of`.
        """
        return self._pass(
            samples, self.forward if self.inference is None else self.inference
        )

    def _pass(self, samples: Ints64, sample_seconds: float) -> Floats:
        """Return the seconds of a pass that takes ``sample_seconds`` for a sample, as
        given, over batches of ``samples``.
        """
        fixed = (
            self.fixed_seconds * sample_seconds / (self.forward + self.backward_seconds)
        )
        seconds: Floats = samples * (self._slope * sample_seconds) + fixed * (
            samples > 0
        )
        return seconds


class Layers(Spec):
    """Layers of a model, or groups of them, whose parameters are known and whose shapes
    are not.

    Attributes:
        parameters: of each layer, first to last.
        backward: share of the backward pass that each layer takes, in any unit.
    """

    parameters: list[Count]
    backward: list[NonNegative]

    @model_validator(mode="after")
    def _as_many(self) -> Layers:
        """Refuse lists of different lengths, no layer, and shares that are all 0."""
        if len(self.parameters) != len(self.backward) or not self.parameters:
            raise ValueError(
                "parameters and backward must have as many values, one for each layer; they have"
                f" {len(self.parameters)} and {len(self.backward)}"
            )
        if not sum(self.backward):
            raise ValueError("backward must not be 0 for all layers")
        return self

    @property
    def arrival(self) -> Floats:
        """(layers, 2) the share of the gradient of each, and that of the backward pass
        after which it is computed, in the order of the backward pass: the last layer
        first.
        """
        gradient = np.array(self.parameters[::-1]) / sum(self.parameters)
        backward = np.cumsum(self.backward[::-1]) / sum(self.backward)
        return np.column_stack([gradient, backward.clip(max=1.0)])


def _shipped_or_valid(layers: str | list[ModelLayer]) -> str | list[ModelLayer]:
    """Return ``layers`` as they are; refuse an unknown name and a list that is no
    network.
    """
    layer_list(layers) if isinstance(layers, str) else read_network("model", layers)
    return layers


def _written_as(layers: Any) -> str:
    """Return the form in which layers are written; the tag of a list where it is no
    known form, so that the error says so.
    """
    if isinstance(layers, str):
        return "[name]"
    return "[Layers]" if isinstance(layers, dict | Layers) else "[ModelLayer]"


ModelLayers = Annotated[
    Annotated[
        str,
        AfterValidator(_shipped_or_valid),
        WithJsonSchema({"title": "list", "enum": list(SHIPPED)}),
        Tag("[name]"),
    ]
    | Annotated[
        list[ModelLayer], AfterValidator(_shipped_or_valid), Tag("[ModelLayer]")
    ]
    | Annotated[Layers, Tag("[Layers]")],
    Discriminator(_written_as),
]
"""The name of a network that comes with simshuffle, a list of layers, or what is known
of them.
"""


class ModelProfile(Sourced):
    """A neural network as the cluster sees it: bytes of gradients and of one input
    sample, step times by accelerator.

    Attributes:
        name: of the model.
        num_parameters: for the record; times follow from 'gradient_size'.
        gradient_size: what is summed over all ranks in every iteration.
        input_size: of one sample as it is copied to the GPU.
        accelerators: step times by the name of the accelerator, which
            'cluster.host.accelerator' says.
        layers: the network, layer by layer, or the name of one that comes with
            simshuffle; or only how much of the gradient is ready when. If left out, 64
            equal layers.
    """

    default_sources: ClassVar[dict[str, str]] = {
        "input_size": "default: a crop of 3 x 224 x 224 FP32 values x 4 B"
    }

    name: str
    num_parameters: Count | None = None
    gradient_size: PositiveNBytes
    input_size: PositiveNBytes = 602_112.0
    accelerators: dict[str, StepTimes]
    layers: ModelLayers | None = None

    @model_validator(mode="after")
    def _layers_add_up(self) -> ModelProfile:
        """Refuse a gradient size that misses the bytes of the layers' parameters."""
        total = self._parameters_of_layers
        exact = self.exact_gradient_size
        of_two_digits = self.gradient_size == float(f"{exact:.1e}")
        if (
            total is None
            or of_two_digits
            or abs(self.gradient_size - exact) <= ROUNDED * exact
        ):
            return self
        sizes = ", ".join(readable(width * total, Dimension.NBYTES) for width in WIDTHS)
        rule = (
            f"layers have {total} parameters, which do not add up to a gradient_size of"
            f" {self.gradient_size:.0f} B: that is {self.gradient_size / total:.3g} B each, and not"
            " 1, 2, 4 or 8 B"
        )
        raise InputError(
            Problem("", rule, "", f"Write {sizes}, or the layers of this model.")
        )

    @property
    def exact_gradient_size(self) -> float:
        """Bytes of the gradient with 1, 2, 4 or 8 B for each parameter of the layers,
        the nearest to ``gradient_size``; that itself where no layers are known, or
        ``num_parameters`` says their number.
        """
        total = self._parameters_of_layers
        if total is None:
            return self.gradient_size
        return min((width * float(total) for width in WIDTHS), key=self._distance)

    def _distance(self, nbytes: float) -> float:
        """Return the share by which ``gradient_size`` misses ``nbytes``."""
        return abs(self.gradient_size / nbytes - 1.0)

    @property
    def _parameters_of_layers(self) -> int | None:
        """Parameters of the layers; None where none are known, or where
        ``num_parameters`` says their number: then a gradient may have any size, as to
        see what that changes.
        """
        layers = self._known_layers
        total = None if layers is None else sum(layers.parameters)
        return None if total == self.num_parameters else total

    @property
    def layer_list(self) -> LayerList | None:
        """The network, layer by layer; None where its shapes are not known."""
        if isinstance(self.layers, str):
            return layer_list(self.layers)
        if isinstance(self.layers, list):
            return read_network(self.name, self.layers)
        return None

    @property
    def one_layer(self) -> LayerList:
        """The network as one layer of kind 'other', where its shapes are not known.

        Its parameters are ``num_parameters``, or else follow from ``gradient_size``.
        """
        values = (max(round(self.input_size / VALUE_NBYTES), 1),)
        parameters = self.num_parameters or max(
            round(self.gradient_size / VALUE_NBYTES), 1
        )
        layer = Layer(
            self.name, "other", (INPUT,), values, values, parameters, flops=1.0
        )
        return LayerList(self.name, (layer,), values)

    @property
    def attention(self) -> tuple[int, float] | None:
        """The most tokens that attend to one another in a layer, and the share of the
        layers with attention in all operations.

        None where no layers with attention are known.
        """
        network_layers = self.layer_list
        attending = (
            []
            if network_layers is None
            else [layer for layer in network_layers.layers if layer.heads]
        )
        if network_layers is None or not attending:
            return None
        share = sum(layer.flops for layer in attending) / network_layers.flops
        return max(layer.output[-1] for layer in attending), share

    @property
    def _known_layers(self) -> Layers | None:
        """Parameters and backward shares of the layers, which decide when gradients are
        ready; None if unknown.
        """
        network_layers = self.layer_list
        if network_layers is None:
            return self.layers if isinstance(self.layers, Layers) else None
        parameters, backward = network_layers.gradient_parts
        return Layers.model_construct(parameters=parameters, backward=backward)

    @property
    def gradient_arrival(self) -> Floats:
        """(parts, 2) bytes of parts of the gradient, and the share of the backward pass
        after which they are computed, ascending; `PIECES` equal parts if no layers are
        known.
        """
        layers = self._known_layers
        if layers is not None:
            parts = layers.arrival
        else:
            equal_shares = np.full(PIECES, 1 / PIECES)
            parts = np.column_stack([equal_shares, np.cumsum(equal_shares)])
        parts[:, 0] *= self.gradient_size
        return parts
