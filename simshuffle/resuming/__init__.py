"""What loaders do with the state that they save, when training goes on with other ranks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.resuming.buffers import WebDatasetRestart
from simshuffle.resuming.hugging_face import HuggingFaceState
from simshuffle.resuming.restart import Restart

AnyResume = Annotated[Restart | HuggingFaceState | WebDatasetRestart, Field(discriminator="kind")]
"""Every law, by its ``kind``."""

__all__ = ["AnyResume"]
