"""A rank of torch.distributed on a host of the testbed: exchanges samples as it is
told, and says when each arrived.

Run as a script inside a network namespace. Told what to do by lines of JSON on standard
input; answers on standard output. Its end of standard input is its end.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]  # an extra
import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]


def scheduling_delay() -> float:
    """Seconds that this process has waited for a processor so far (0 where the kernel
    does not count it).
    """
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def say(**message: Any) -> None:
    """One line of JSON to whoever started this."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def sample_bytes(number: int, nbytes: int) -> torch.Tensor:
    """A sample: its number in the first 8 bytes."""
    data = torch.zeros(nbytes, dtype=torch.uint8)
    data[:8] = torch.tensor(list(number.to_bytes(8, "little")), dtype=torch.uint8)
    return data


def number_of(data: torch.Tensor) -> int:
    """The number of a sample."""
    return int.from_bytes(bytes(data[:8].tolist()), "little")


def exchange(run: dict[str, Any]) -> None:
    """Carry out one exchange that begins at the monotonic time ``at``; say when each
    message arrived.
    """
    nbytes: int = run["nbytes"]
    held = [sample_bytes(out[2] if out else 0, nbytes) for out, _ in run["messages"]]
    room = torch.empty((len(held), nbytes), dtype=torch.uint8)
    arrived: list[tuple[int, float]] = []
    # all receives are posted ahead: gloo asks for each message on the connection that carries data
    # the other way, and would wait for it
    coming = [
        dist.irecv(room[step], into[1]) if into else None
        for step, (_, into) in enumerate(run["messages"])
    ]
    time.sleep(max(run["at"] - time.monotonic(), 0.0))
    waited = scheduling_delay()
    for step, (out, into) in enumerate(run["messages"]):
        sent = dist.isend(held[step], out[1]) if out else None
        received = coming[step]
        if received is not None:
            received.wait()
            arrived.append((into[0], time.monotonic()))
        if sent is not None:
            sent.wait()
        if run["barrier"]:
            dist.barrier()
    waited = scheduling_delay() - waited
    for step, (_, into) in enumerate(run["messages"]):
        if into and number_of(room[step]) != into[2]:
            raise SystemExit(
                f"step {step}: sample {number_of(room[step])} came instead of {into[2]}"
            )
    say(done=arrived, waited=waited)


def main() -> None:
    """Serve as rank ``argv[1]`` of ``argv[2]``; all meet at the file ``argv[3]``; ends
    after ``argv[4]`` seconds.
    """
    # the one who started this decides what Ctrl-C means
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.alarm(int(sys.argv[4]))
    torch.set_num_threads(1)
    rank = int(sys.argv[1])
    world_size = int(sys.argv[2])
    limit = timedelta(seconds=int(sys.argv[4]))
    dist.init_process_group(
        "gloo",
        init_method=f"file://{sys.argv[3]}",
        rank=rank,
        world_size=world_size,
        timeout=limit,
    )
    dist.barrier()
    say(ready=rank)
    for line in sys.stdin:
        exchange(json.loads(line)["run"])


if __name__ == "__main__":
    main()
