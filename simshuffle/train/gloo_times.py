"""Measurement of an allreduce by gloo, printed as nccl-tests prints it for NCCL, so
that `simshuffle machine calibrate` reads it.

    torchrun --nproc-per-node 4 -m simshuffle.train.gloo_times > gloo.txt

On several hosts, use --nnodes; GLOO_SOCKET_IFNAME names the network device.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

SIZES = tuple(1024 * 8**power for power in range(6))
"""Bytes that are summed: 1 KiB to 32 MiB."""
SECONDS = 0.3
"""s that each size is repeated for."""
WARM_UP = 3
"""Repetitions before that, which do not count."""


def measure_allreduce(nbytes: int) -> tuple[float, int]:
    """Measure an allreduce of ``nbytes`` bytes, a multiple of 4. Collective.

    float32 values are summed at least 5 times, after `WARM_UP` calls that do not count.

    Returns:
        Mean time (s) in the slowest rank; and how many values were wrong in this rank.
    """
    values = torch.ones(nbytes // 4)
    for _ in range(WARM_UP):
        begin = time.perf_counter()
        dist.all_reduce(values.fill_(1.0))
        seconds = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
    dist.all_reduce(
        seconds, dist.ReduceOp.MAX
    )  # so that all ranks repeat it equally often
    repetitions = max(int(SECONDS / float(seconds)), 5)
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(repetitions):
        dist.all_reduce(values)
    mean = torch.tensor(
        (time.perf_counter() - begin) / repetitions, dtype=torch.float64
    )
    dist.all_reduce(mean, dist.ReduceOp.MAX)
    dist.all_reduce(values.fill_(1.0))
    return float(mean), int((values != dist.get_world_size()).sum())


def table(
    places: Sequence[tuple[str, int]], measurements: Mapping[int, tuple[float, int]]
) -> str:
    """Return the text that nccl-tests would print: a line for each size, with the time
    in us, and the algorithm and bus bandwidth, 2 (M - 1) / M of the first, in GB/s.

    Args:
        places: host and process of each rank.
        measurements: results of `measure_allreduce` by the bytes that are summed.
    """
    ranks = len(places)
    lines = [
        "# Collective test starting: all_reduce_perf",
        "# by gloo, in torch.distributed",
    ]
    for rank, (host, process) in enumerate(places):
        lines.append(f"#  Rank {rank} Pid {process} on {host} device 0 [0x00] CPU")
    lines.append("# size count type redop time algbw busbw #wrong")
    for nbytes, (seconds, num_wrong) in measurements.items():
        rate = nbytes / seconds / 1e9
        bus_rate = rate * 2 * (ranks - 1) / ranks
        cells = (nbytes, nbytes // 4, "float", "sum", f"{seconds * 1e6:.4g}")
        lines.append(
            " ".join(map(str, (*cells, f"{rate:.4g}", f"{bus_rate:.4g}", num_wrong)))
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure all sizes among the ranks of torchrun; rank 0 prints the table."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    places: list[tuple[str, int]] = [("", 0)] * dist.get_world_size()
    dist.all_gather_object(places, (platform.node() or "host", os.getpid()))
    measurements = {nbytes: measure_allreduce(nbytes) for nbytes in SIZES}
    if dist.get_rank() == 0:
        sys.stdout.write(table(places, measurements))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
