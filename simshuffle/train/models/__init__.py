"""Networks, one file each. To add one, write a file and add it to the union."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.train.models.base import Network
from simshuffle.train.models.mlp import Mlp
from simshuffle.train.models.own import OwnModel
from simshuffle.train.models.resnet import ResNet
from simshuffle.train.models.small_cnn import SmallCnn
from simshuffle.train.models.wide_resnet import WideResNet

Model = Annotated[Mlp | SmallCnn | ResNet | WideResNet | OwnModel, Field(discriminator="kind")]

__all__ = ["Mlp", "Model", "Network", "OwnModel", "ResNet", "SmallCnn", "WideResNet"]
