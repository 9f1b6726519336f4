"""The arrays of a network, by the addresses at which they are held."""

from __future__ import annotations

from simshuffle.network.fluid.records import no_links, no_transfers
from simshuffle.network.held import holder

state_at = holder(no_links)
graph_at = holder(no_transfers)
