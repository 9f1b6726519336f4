"""What loaders do with the state that they save, when training goes on with other ranks."""

from __future__ import annotations

from simshuffle.resuming.restart import Restart

# Annotated[A | B, Field(discriminator="kind")] as soon as there are two, as `simshuffle.orders`
AnyResume = Restart
"""Every law, by its ``kind``."""

__all__ = ["AnyResume"]
