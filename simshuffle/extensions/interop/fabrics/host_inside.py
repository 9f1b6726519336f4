"""What stands inside a host, as a file of another tool shows it: GPUs, network ports, and what lies
between them; as the values of `cluster.host`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from simshuffle.spec.fragment import FragmentEntry, fragment_text
from simshuffle.spec.units import Dimension, readable

NVLINK_BANDWIDTH = {60: 20e9, 70: 25e9, 80: 25e9, 86: 14.0625e9, 90: 25e9, 100: 50e9}
"""Bytes/s of one NVLink in each direction, by the compute capability x 10 from which on: NVIDIA's
data sheets of P100, V100, A100, H100 and B200; that of GA102 as `nvidia-smi nvlink` says."""
MOST_NVLINKS = 18
"""Of a GPU: H100 and B200, data sheets."""


@dataclass(frozen=True)
class Gpu:
    """A GPU."""

    name: str
    numa: str  # number of its NUMA domain; '' if not known
    # name of the PCIe root port through which it reaches the processor, the same for all below it
    slot: str
    near: tuple[str, ...]  # names of the network ports below the same root port
    nvlinks: int = 0  # how many leave it
    nvlink_bandwidth: float | None = None  # bytes/s of one; None if not known
    # bytes/s of the narrowest PCIe link on its way to the processor; None if not known
    pcie_bandwidth: float | None = None


@dataclass(frozen=True)
class HostInside:
    """What stands inside a host."""

    source: str  # the file, and what wrote it
    gpus: Sequence[Gpu]  # in the order of the file; at least one
    ports: Sequence[str]  # names of all network ports
    warnings: list[str] = field(default_factory=list)  # what is unusual, each as a text

    def to_yaml(self) -> str:
        """The fragment for a scenario. What cannot be a value of `cluster.host` is a comment, and
        so is what each GPU is near to."""
        entries, left_out = [], []
        for key, value, note in self._values():
            if (key in {"hcas", "pcie_slots"}) and len(self.gpus) % int(value):
                left_out.append(f"{key}: {value} do not divide {len(self.gpus)} GPUs evenly")
            else:
                entries.append(FragmentEntry(f"cluster.host.{key}", value, note))
        return fragment_text(self.source, entries, [*left_out, *self.lines()])

    def _values(self) -> Iterator[tuple[str, int | str, str]]:
        yield "gpus", len(self.gpus), "read"
        near = {port for gpu in self.gpus for port in gpu.near}
        if near:
            note = f"of {len(self.ports)} network ports those below the root port of a GPU"
            yield "hcas", len(near), note
        elif self.ports:
            yield "hcas", len(self.ports), "all network ports"
        slots = Counter(gpu.slot for gpu in self.gpus)
        shares = sorted(set(slots.values()))
        yield "pcie_slots", len(slots), f"PCIe root ports, of {_between(shares)} GPUs each"
        rates = sorted(gpu.pcie_bandwidth for gpu in self.gpus if gpu.pcie_bandwidth is not None)
        if rates:
            note = "the narrowest link to the processor, speed x width less the line code"
            yield "pcie_bandwidth", readable(rates[0], Dimension.BANDWIDTH), note
        least = min(self.gpus, key=lambda gpu: gpu.nvlinks * (gpu.nvlink_bandwidth or 0.0))
        if least.nvlinks and least.nvlink_bandwidth:
            total = readable(least.nvlinks * least.nvlink_bandwidth, Dimension.BANDWIDTH)
            each = readable(least.nvlink_bandwidth, Dimension.BANDWIDTH)
            yield "nvlink_bandwidth", total, f"{least.nvlinks} NVLinks of {each}, data sheet"

    def lines(self) -> list[str]:
        """What there is, for people."""
        domains = len({gpu.numa for gpu in self.gpus if gpu.numa})
        return [
            f"NUMA domains with GPUs: {domains or 'not known'}",
            *(
                f"{gpu.name}: NUMA {gpu.numa or '?'}, root port {gpu.slot},"
                f" beside {', '.join(gpu.near) or 'no network port'}"
                for gpu in self.gpus
            ),
            *self.warnings,
        ]


def nvlink_bandwidth(capability: int) -> float:
    """Bytes/s of one NVLink of a GPU in each direction, by its compute capability x 10."""
    known = [rate for least, rate in NVLINK_BANDWIDTH.items() if least <= capability]
    return known[-1] if known else NVLINK_BANDWIDTH[60]


def _between(counts: Sequence[int]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
