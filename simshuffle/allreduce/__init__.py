"""Allreduce algorithms, one file each."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.allreduce.ring import Ring, RingFlows

Allreduce = Annotated[Ring, Field()]

__all__ = ["Allreduce", "Ring", "RingFlows"]
