"""The GPUs, network ports and PCIe inside a host, as values of `cluster.host`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from simshuffle.spec.fragment import FragmentEntry, fragment_text
from simshuffle.spec.units import Dimension, readable

NVLINK_BANDWIDTH = {60: 20e9, 70: 25e9, 80: 25e9, 86: 14.0625e9, 90: 25e9, 100: 50e9}
"""Bytes/s of one NVLink in each direction, by the least compute capability x 10:
NVIDIA's data sheets of P100, V100, A100, H100 and B200; that of GA102 as `nvidia-smi
nvlink` says.
"""
MAX_NVLINKS = 18
"""NVLinks of a GPU, at most: H100 and B200, data sheets."""


@dataclass(frozen=True)
class Gpu:
    """A GPU of a host, with the NVLinks and the PCIe link that it has."""

    name: str
    numa: str  # number of its NUMA domain; '' if not known
    # name of the PCIe root port through which it reaches the processor, the same for all below it
    root_port: str
    nearby_ports: tuple[str, ...]  # names of the network ports below the same root port
    nvlinks: int = 0  # how many lead to other GPUs
    # bytes/s of one in each direction; None if not known
    nvlink_bandwidth: float | None = None
    # bytes/s in each direction of the narrowest PCIe link on its way to the processor; None if
    # not known
    pcie_bandwidth: float | None = None


@dataclass(frozen=True)
class HostInventory:
    """The GPUs and network ports of one host."""

    source: str  # the file, and what wrote it
    gpus: Sequence[Gpu]  # in the order of the file; at least one
    ports: Sequence[str]  # names of all network ports
    warnings: list[str] = field(default_factory=list)  # what is unusual, each as a text

    def to_yaml(self) -> str:
        """Return the fragment that a scenario includes.

        What cannot be a value of `cluster.host`, such as the ports near each GPU,
        becomes a comment; so do adapters and slots that do not divide the GPUs evenly.
        """
        entries = []
        left_out = []
        for key, value, note in self._host_values():
            if (key in {"hcas", "pcie_slots"}) and len(self.gpus) % int(value):
                left_out.append(
                    f"{key}: {value} do not divide {len(self.gpus)} GPUs evenly"
                )
            else:
                entries.append(FragmentEntry(f"cluster.host.{key}", value, note))
        return fragment_text(self.source, entries, [*left_out, *self.summary_lines()])

    def _host_values(self) -> Iterator[tuple[str, int | str, str]]:
        """Yield the key below `cluster.host`, the value, and a note on how it was
        found.

        Adapters are those near a GPU, else all, and left out if there are none. PCIe's
        bandwidth is the lowest that is known, and left out if none is. NVLink's is that
        of the GPU whose links have the lowest sum. NVLink is left out if one GPU has no
        NVLinks, or links of unknown bandwidth.
        """
        yield "gpus", len(self.gpus), "read"
        nearby_ports = {port for gpu in self.gpus for port in gpu.nearby_ports}
        if nearby_ports:
            note = f"of {len(self.ports)} network ports, those below the root port of a GPU"
            yield "hcas", len(nearby_ports), note
        elif self.ports:
            yield "hcas", len(self.ports), "all network ports"
        gpus_of_root_port = Counter(gpu.root_port for gpu in self.gpus)
        gpu_counts = sorted(set(gpus_of_root_port.values()))
        note = f"PCIe root ports, of {_format_range(gpu_counts)} GPUs each"
        yield "pcie_slots", len(gpus_of_root_port), note
        rates = sorted(
            gpu.pcie_bandwidth for gpu in self.gpus if gpu.pcie_bandwidth is not None
        )
        if rates:
            note = (
                "the narrowest link to the processor: speed x width minus the line code"
            )
            yield "pcie_bandwidth", readable(rates[0], Dimension.BANDWIDTH), note
        slowest_gpu = min(
            self.gpus, key=lambda gpu: gpu.nvlinks * (gpu.nvlink_bandwidth or 0.0)
        )
        if slowest_gpu.nvlinks and slowest_gpu.nvlink_bandwidth:
            total_bandwidth = slowest_gpu.nvlinks * slowest_gpu.nvlink_bandwidth
            link_text = readable(slowest_gpu.nvlink_bandwidth, Dimension.BANDWIDTH)
            note = f"{slowest_gpu.nvlinks} NVLinks of {link_text}, data sheet"
            yield (
                "nvlink_bandwidth",
                readable(total_bandwidth, Dimension.BANDWIDTH),
                note,
            )

    def summary_lines(self) -> list[str]:
        """Return a line for people on the NUMA domains, on each GPU, and for each
        warning.
        """
        domains = len({gpu.numa for gpu in self.gpus if gpu.numa})
        return [
            f"NUMA domains with GPUs: {domains or 'not known'}",
            *(
                f"{gpu.name}: NUMA {gpu.numa or '?'}, root port {gpu.root_port},"
                f" beside {', '.join(gpu.nearby_ports) or 'no network port'}"
                for gpu in self.gpus
            ),
            *self.warnings,
        ]


def nvlink_bandwidth(capability: int) -> float:
    """Return the bytes/s of one NVLink of a GPU in each direction, by the last entry of
    `NVLINK_BANDWIDTH` that it reaches, else the first.

    Args:
        capability: compute capability of the GPU times 10; 0, if it is not known,
            counts as a P100.
    """
    rates = [
        rate
        for min_capability, rate in NVLINK_BANDWIDTH.items()
        if min_capability <= capability
    ]
    return rates[-1] if rates else NVLINK_BANDWIDTH[60]


def _format_range(counts: Sequence[int]) -> str:
    """Return ascending numbers as text: '4', or '2 to 8' for the smallest and the
    largest.
    """
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
