"""What loaders do with the states that they save, when training goes on with other ranks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.resuming.own import Own
from simshuffle.resuming.restart import Restart

AnyResume = Annotated[Restart | Own, Field(discriminator="kind")]
"""Every law, by its ``kind``."""

__all__ = ["AnyResume"]
