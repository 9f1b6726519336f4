"""Network models: one interface, ``finish_times(links, flows) -> FlowOutcome``, in
three fidelities, chosen by name and never switched. Importing them loads no compiled
code.
"""

from __future__ import annotations

from simshuffle.fabric.network.flows import FlowOutcome, Flows, Links
from simshuffle.fabric.network.models import Analytic, Fluid, Network, Packet

__all__ = ["Analytic", "FlowOutcome", "Flows", "Fluid", "Links", "Network", "Packet"]
