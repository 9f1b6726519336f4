"""What loaders do with the state that they save, when training goes on with other ranks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.resuming.restart import Restart
from simshuffle.resuming.samplers import Lightning, StatefulDataLoader, TorchFtLoader
from simshuffle.resuming.skipping import SkipFirstBatches, TransformersTrainer

AnyResume = Annotated[
    Restart
    | StatefulDataLoader
    | TorchFtLoader
    | SkipFirstBatches
    | TransformersTrainer
    | Lightning,
    Field(discriminator="kind"),
]
"""Every law, by its ``kind``."""

__all__ = ["AnyResume"]
