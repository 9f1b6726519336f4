"""The order in which loaders hand out samples, one file for each family of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.orders.corgipile import Corgi2, CorgiPile
from simshuffle.orders.hugging_face import HuggingFace
from simshuffle.orders.levanter import Levanter
from simshuffle.orders.own import Own
from simshuffle.orders.ray_local import RayLocal
from simshuffle.orders.synchronised import Synchronised
from simshuffle.orders.tf_data import TfData
from simshuffle.orders.webdataset import WebDataset

AnyOrder = Annotated[
    WebDataset
    | HuggingFace
    | TfData
    | Levanter
    | CorgiPile
    | Corgi2
    | RayLocal
    | Synchronised
    | Own,
    Field(discriminator="kind"),
]
"""Every order, by its ``kind``."""
