"""Networks. To add one, write a class like these and add it to the union at the end.

``build`` makes the network for samples of a shape, (features,) or (channels, height,
width), with weights drawn from torch's global generator. Its last layer is linear and
named ``head``; its inputs are the features. ``label`` is a name in words, for figures.

Sources: He et al. 2015 (arXiv 1512.03385), section 4.2, for `ResNet`; Zagoruyko and
Komodakis 2016 (arXiv 1605.07146) for `WideResNet`; Dosovitskiy et al. 2020 (arXiv
2010.11929) for `Vit`; Wu and He 2018 (arXiv 1803.08494) for group norm.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError
from torch import nn

from simshuffle.errors import refuse
from simshuffle.spec.record import Few, Spec
from simshuffle.train.batch_norm import RankBatchNorm, rectify_norm
from simshuffle.train.residual import (
    Norm,
    ResidualNetwork,
    WideResidualNetwork,
    norm_2d,
)
from simshuffle.train.transformer import VisionTransformer

SMALLEST_SIDE = 8
"""Pixels: the convolutional networks halve an image twice."""


def _with_norm(label: str, norm: Norm) -> str:
    """Return the label of a network with its norm, if that is not batch norm."""
    return label if norm == "batch" else f"{label}, group norm"


def image_shape(shape: tuple[int, ...], kind: str) -> tuple[int, int, int]:
    """Return ``shape`` as (channels, height, width), of at least 8 x 8 pixels, or raise
    InputError.
    """
    if len(shape) != 3 or min(shape[1:]) < SMALLEST_SIDE:
        side = f"{SMALLEST_SIDE} x {SMALLEST_SIDE} pixels"
        rule = f"{kind} takes images (channels, height, width) of at least {side}"
        remedy = "Use model mlp, or other data."
        refuse("model", rule, f"samples of shape {shape}", remedy, "training")
    return shape


class _Chain(nn.Sequential):
    """Layers one after the other; batch norm and the rectifier after it at once where
    possible.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Apply the layers in their order to ``input``."""
        layers = list(self)
        # batch norm and a ReLU behind it go through memory once, not twice
        while layers:
            layer = layers.pop(0)
            if (
                isinstance(layer, RankBatchNorm)
                and layers
                and isinstance(layers[0], nn.ReLU)
            ):
                layers.pop(0)
                input = rectify_norm(layer, input)
            else:
                input = layer(input)
        return input


class Mlp(Spec):
    """``layers`` times linear, batch norm and ReLU, each ``width`` units wide, and a
    linear head. Images are flattened.

    Attributes:
        width: units of a layer.
        layers: before the linear head.
    """

    has_batch_norm: ClassVar[bool] = True
    kind: Literal["mlp"]
    width: Few = 128
    layers: Few = 2

    @property
    def label(self) -> str:
        """Description for figures, such as 'two-layer network'."""
        words = ("one", "two", "three", "four", "five", "six")
        count = (
            words[self.layers - 1] if self.layers <= len(words) else str(self.layers)
        )
        return f"{count}-layer network"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return the network for samples of any ``shape`` and so many ``classes``."""
        parts: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        inputs = math.prod(shape)
        for number in range(1, self.layers + 1):
            parts[f"linear{number}"] = nn.Linear(inputs, self.width, bias=False)
            parts[f"norm{number}"] = nn.BatchNorm1d(self.width)
            parts[f"relu{number}"] = nn.ReLU()
            inputs = self.width
        parts["head"] = nn.Linear(inputs, classes)
        return _Chain(parts)


class SmallCnn(Spec):
    """Two times 3 x 3 convolution, 2 x 2 max-pooling, batch norm and ReLU, ``width``
    and twice as many channels; then a linear head.

    Pooling comes first because norm and ReLU then have a quarter to do.

    Attributes:
        width: channels of the first convolution; the second one has twice as many.
        norm: 'batch'; or 'group', which normalises each sample by itself, in at most 8
            groups of channels.
    """

    kind: Literal["small_cnn"]
    width: Few = 16
    norm: Norm = "batch"

    @property
    def has_batch_norm(self) -> bool:
        """True if the network has layers of batch norm."""
        return self.norm == "batch"

    @property
    def label(self) -> str:
        """Description for figures: a small convolutional network, and its norm."""
        return _with_norm("small convolutional network", self.norm)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return the network for images of ``shape``, at least 8 x 8 pixels, and so
        many ``classes``.
        """
        channels, height, width = image_shape(shape, self.kind)
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        for number, outputs in enumerate((self.width, 2 * self.width), 1):
            parts[f"conv{number}"] = nn.Conv2d(
                channels, outputs, 3, padding=1, bias=False
            )
            parts[f"pool{number}"] = nn.MaxPool2d(2)
            parts[f"norm{number}"] = norm_2d(self.norm, outputs)
            parts[f"relu{number}"] = nn.ReLU()
            channels = outputs
        parts["flatten"] = nn.Flatten()
        parts["head"] = nn.Linear(channels * (height // 4) * (width // 4), classes)
        return _Chain(parts)


# ------------------------------------------------------------------------------- residual networks


def _six_n_plus(remainder: int, examples: str) -> AfterValidator:
    """Return a check that a depth is 6 n + ``remainder``."""

    def check(depth: int) -> int:
        """Return the depth if it is 6 n + ``remainder``, or raise pydantic's error."""
        if depth % 6 != remainder:
            raise PydanticCustomError(
                "depth", f"must be 6 n + {remainder}: {examples}, ..."
            )
        return depth

    return AfterValidator(check)


class ResNet(Spec):
    """6 n + 2 = ``depth`` layers: a convolution, three stages of n basic blocks with
    16, 32 and 64 channels, and a linear head.

    Shortcuts without parameters: where the channels double, every second pixel, with
    zeros in the new channels (option A).

    Attributes:
        depth: layers in all: 6 n + 2.
        norm: 'batch'; or 'group', which normalises each sample by itself, in at most 8
            groups of channels.
        stem_stride: of the first convolution; 2 halves the image, as in a ResNet-50,
            and leaves a quarter of the work.
    """

    kind: Literal["resnet"]
    depth: Annotated[int, Field(ge=8, le=1202), _six_n_plus(2, "8, 14, 20")] = 8
    norm: Norm = "batch"
    stem_stride: Literal[1, 2] = 1

    @property
    def has_batch_norm(self) -> bool:
        """True if the network has layers of batch norm."""
        return self.norm == "batch"

    @property
    def label(self) -> str:
        """Description for figures, such as 'ResNet-8'.

        The stride of the first convolution follows if it is 2, and the norm if it is
        not batch norm.
        """
        stem = "" if self.stem_stride == 1 else f", stem of stride {self.stem_stride}"
        return _with_norm(f"ResNet-{self.depth}{stem}", self.norm)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return the network for images of ``shape``, at least 8 x 8 pixels, and so
        many ``classes``.
        """
        channels = image_shape(shape, self.kind)[0]
        return ResidualNetwork(
            channels, (self.depth - 2) // 6, classes, self.norm, self.stem_stride
        )


class WideResNet(Spec):
    """WRN-``depth``-``widen_factor`` without dropout: 6 n + 4 = ``depth`` layers in
    pre-activation blocks B(3, 3); table 1 there.

    Attributes:
        depth: layers in all: 6 n + 4.
        widen_factor: by which stages are wider than those of a ResNet.
    """

    has_batch_norm: ClassVar[bool] = True
    kind: Literal["wide_resnet"]
    depth: Annotated[int, Field(ge=10, le=1000), _six_n_plus(4, "10, 16, 22, 28")] = 28
    widen_factor: Annotated[int, Field(ge=1, le=64)] = 10

    @property
    def label(self) -> str:
        """Description for figures, such as 'WRN-28-10'."""
        return f"WRN-{self.depth}-{self.widen_factor}"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return the network for images of ``shape``, at least 8 x 8 pixels, and so
        many ``classes``.
        """
        channels = image_shape(shape, self.kind)[0]
        return WideResidualNetwork(
            channels, (self.depth - 4) // 6, self.widen_factor, classes
        )


# ------------------------------------------------------------------------------------- transformers


class Vit(Spec):
    """A vision transformer: patches of the image as vectors, plus learned positions;
    blocks of attention and a perceptron four times as wide, each after its own layer
    norm and beside a shortcut, without dropout; a layer norm, and a linear head.

    The head takes the mean over patches, which does as well as the class token
    (appendix D.3 there). No batch norm: every sample is normalised by itself.

    Attributes:
        patch_size: pixels along a side of a patch; both sides of the image are
            multiples of it.
        width: numbers that stand for a patch; a multiple of ``heads``.
        depth: blocks.
        heads: of each attention.
    """

    has_batch_norm: ClassVar[bool] = False
    kind: Literal["vit"]
    patch_size: Few = 7
    width: Few = 64
    depth: Few = 2
    heads: Few = 4

    @model_validator(mode="after")
    def _heads_divide(self) -> Vit:
        """Refuse a width that is no multiple of the heads."""
        if self.width % self.heads:
            raise PydanticCustomError("heads", "width must be a multiple of heads")
        return self

    @property
    def label(self) -> str:
        """Description for figures, such as 'ViT of 2 blocks'."""
        return f"ViT of {self.depth} block{'s' if self.depth > 1 else ''}"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return the network for images of ``shape``, whose sides are multiples of
        ``patch_size``, and so many ``classes``.

        Raises:
            InputError: for smaller images than 8 x 8 pixels, or other sides.
        """
        image = image_shape(shape, self.kind)
        # the longest patch that divides both sides
        side = math.gcd(*image[1:])
        if side % self.patch_size:
            rule = (
                f"must divide both sides of the images, {image[1]} x {image[2]} pixels"
            )
            divisors = [str(n) for n in range(1, side + 1) if not side % n]
            remedy = f"Use {' or '.join(divisors)}."
            refuse("model.patch_size", rule, str(self.patch_size), remedy, "training")
        keys = self.model_dump(include={"patch_size", "width", "depth", "heads"})
        return VisionTransformer(image, classes, **keys)


# ---------------------------------------------------------------------------------- of the caller's


class OwnModel(Spec):
    """The network that a caller gave to `simshuffle.train.train_study`, its loss and
    its optimiser.

    Attributes:
        name: for tables and figures.
        version: that the caller gives; changed where the code changes.
        loss: name of the loss.
        optimizer: name of the optimiser.
        has_batch_norm: whether the network has layers of batch norm.
    """

    kind: Literal["own"]
    name: str
    version: str = ""
    loss: str = "cross_entropy"
    optimizer: str = "SGD"
    has_batch_norm: bool = True

    @property
    def label(self) -> str:
        """Description for figures: the network's name."""
        return self.name

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Raise InputError: a file has no module of the caller's."""
        remedy = "Pass the model to simshuffle.train.train_study."
        refuse("model", "must be given from Python", self.name, remedy, "study")


Model = Annotated[
    Mlp | SmallCnn | ResNet | WideResNet | Vit | OwnModel, Field(discriminator="kind")
]
