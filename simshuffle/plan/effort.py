"""What simulating a run takes, roughly: seconds of one core and bytes of memory."""

from __future__ import annotations

from dataclasses import dataclass

from simshuffle.network import Packet
from simshuffle.plan.packets import expected_packets
from simshuffle.scenario.scenario import Scenario

# measured with benchmarks/effort.py on one core of an AMD EPYC
START = 1.2
"""s to import what simulates and to load the compiled network; compiling it, once, takes 11 s."""
PER_ITERATION = 2.4e-5
"""s for an iteration of a rank: its reads, its compute, its share of the allreduce; or for a batch
of a pass that measures importance."""
PER_SENDING = 4.3e-5
"""s more if samples are sent after it."""
PER_SAMPLE = 6e-6
"""s for a sample that is sent."""
PER_STORED = 3.6e-7
"""s for a sample of the data set in an epoch, to plan it."""
PER_RANK = 1.2e-4
"""s for a rank: its links and routes."""
PER_PACKET = 0.7e-6
"""s for a packet, over four to six cables."""
BASE_NBYTES = 290e6
"""Bytes of a process that has loaded all that."""
ITERATION_NBYTES = 1.4e3
"""Bytes for an iteration of a rank: its rows of the timeline."""
SAMPLE_NBYTES = 200.0
"""Bytes for a sample that is sent, in one epoch; plans are made epoch by epoch."""
STORED_NBYTES = 30.0
"""Bytes for a sample of the data set."""


@dataclass(frozen=True)
class Effort:
    """What decides how long a simulation takes, and how much memory.

    Attributes:
        iterations: of all ranks, in all epochs, with those of the passes that measure importance.
        samples: that all ranks send, in all epochs.
        stored: samples of the data set.
        epochs: of the run.
        ranks: M.
        packets: that cross cables, where the network is simulated packet by packet.
    """

    iterations: float
    samples: float
    stored: float
    epochs: int
    ranks: int
    packets: float = 0.0

    @property
    def seconds(self) -> float:
        """s of one core, without `START`."""
        return (
            0.1
            + PER_ITERATION * self.iterations
            + PER_SENDING * min(self.iterations, self.samples)
            + PER_SAMPLE * self.samples
            + PER_STORED * self.stored * self.epochs
            + PER_RANK * self.ranks
            + PER_PACKET * self.packets
        )

    @property
    def nbytes(self) -> float:
        """Bytes of memory of the process."""
        return (
            BASE_NBYTES
            + ITERATION_NBYTES * self.iterations
            + SAMPLE_NBYTES * self.samples / self.epochs
            + STORED_NBYTES * self.stored
        )


def effort(scenario: Scenario) -> Effort:
    """The effort of a run."""
    workload, epochs, dataset = scenario.workload, scenario.epochs, scenario.workload.dataset
    packets = 0.0
    if isinstance(scenario.network, Packet):
        packets = sum(expected_packets(scenario, scenario.network.mtu).values())
    passes = 2 if workload.exchange.inference_pass else 1
    return Effort(
        iterations=scenario.world_size * workload.iterations(scenario.world_size) * epochs * passes,
        samples=(workload.exchange.fraction or 0.0) * dataset.num_samples * epochs,
        stored=dataset.num_samples,
        epochs=epochs,
        ranks=scenario.world_size,
        packets=packets,
    )
