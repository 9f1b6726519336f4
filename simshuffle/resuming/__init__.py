"""What loaders do with the state that they save, when training goes on with other ranks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.resuming.energon import Energon
from simshuffle.resuming.language import Levanter, Megatron, RayTrain
from simshuffle.resuming.restart import Restart

AnyResume = Annotated[
    Restart | Megatron | Energon | Levanter | RayTrain, Field(discriminator="kind")
]
"""Every law, by its ``kind``."""

__all__ = ["AnyResume"]
