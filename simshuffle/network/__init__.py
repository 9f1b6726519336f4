"""Network models: one interface, ``finish_times(links, flows) -> Outcome``, in three fidelities,
chosen by name and never switched."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.network.analytic import Analytic
from simshuffle.network.flows import Flows, Links, Outcome
from simshuffle.network.fluid import Fluid
from simshuffle.network.packet import Packet

Network = Annotated[Analytic | Fluid | Packet, Field(discriminator="kind")]

__all__ = ["Analytic", "Flows", "Fluid", "Links", "Network", "Outcome", "Packet"]
