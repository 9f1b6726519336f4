"""Describe the host of a record as a cluster of one host, of which only the cores are
known, and the server that samples are read from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simshuffle.spec.units import Dimension, readable

NO_LIMIT = "1 PB/s"
"""Bandwidth that never binds."""
_UNUSED = "not used: one host, whose own devices the record does not tell apart"


def own_host(
    name: str, device: str, cores: int, memory_nbytes: float, server: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the ``cluster`` of a scenario as plain values, of one host with one GPU.

    Network, SSD, memory and parallel file system have no latency and are so fast that
    they never bind; there is no page cache.

    Args:
        name: of the cluster.
        device: name of the GPU.
        cores: of the host.
        memory_nbytes: of the host; the SSD gets the same capacity.
        server: keys of an object store, which has a latency, a rate of each reader and
            one of all; copied as they are.
    """
    capacity = readable(memory_nbytes, Dimension.NBYTES)
    return {
        "name": name,
        "topology": {
            "kind": "star",
            "hosts": 1,
            "link_bandwidth": NO_LIMIT,
            "cable_latency": "0 s",
            "switch_latency": "0 s",
            "source": _UNUSED,
        },
        "host": {
            "gpus": 1,
            "accelerator": device,
            "cores": cores,
            "hcas": 1,
            "pcie_slots": 1,
            "pcie_bandwidth": NO_LIMIT,
            "nvlink_bandwidth": NO_LIMIT,
            "source": _UNUSED,
        },
        "ssd": {
            "capacity": capacity,
            "read_bandwidth": NO_LIMIT,
            "write_bandwidth": NO_LIMIT,
            "latency": "0 s",
            "source": _UNUSED,
        },
        "memory": {
            "capacity": capacity,
            "bandwidth": NO_LIMIT,
            "page_cache": "0 B",  # what it holds is in the times that were recorded
            "source": _UNUSED,
        },
        "parallel_file_system": {
            "read_bandwidth": NO_LIMIT,
            "open_rate": "1 G/s",
            "latency": "0 s",
            "link_bandwidth": NO_LIMIT,
            "link_latency": "0 s",
            "source": _UNUSED,
        },
        "object_store": dict(server),
    }
