"""Time and memory of an epoch at 2048 ranks: ResNet-50 / ImageNet-1K with a tenth exchanged, and
the strategies beside it; and what gradients summed beside the backward pass cost.

    python benchmarks/epoch.py [REPEATS]

Every run is a fresh process. CPU seconds and the largest resident set are the operating system's.
The limit beside them, measured in the same run, is SimPy alone: as many bare timeouts as the
simulation schedules events.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

CHILD = """
import json, resource, sys, time
begin = time.process_time()
import simpy
from simshuffle import load_scenario
from simshuffle.job.sim import simulate as module
from simshuffle.fabric.network import Flows, Fluid, Links
exec(sys.argv[2])
Fluid().finish_times(Links([1.0], [0.0]), Flows.from_lists([[0]], [1.0]))
scenario = load_scenario("abci-imagenet1k", {"epochs": 1, **json.loads(sys.argv[1])})
clocks, begun = [], simpy.Environment.__init__
def begin_and_keep(self, *args):
    begun(self, *args)
    clocks.append(self)
simpy.Environment.__init__ = begin_and_keep
ready = time.process_time()
module.simulate(scenario)
done = time.process_time()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
events = sum(next(clock._eid) for clock in clocks)
env = simpy.Environment()
def idle(count):
    for _ in range(count):
        yield env.timeout(1.0)
for _ in range(2048):
    env.process(idle(100))
begin_idle = time.process_time()
env.run()
idle_s = time.process_time() - begin_idle
limit_s = idle_s / (2048 * 100) * events
times = {"start_s": ready - begin, "epoch_s": done - ready, "limit_s": limit_s}
print(json.dumps({**times, "events": events, "peak_MB": peak}))
"""


PARTIAL = "partial_local_shuffle:exchange_fraction=0.1"
REGISTERED = "my_ring:exchange_fraction=0.1"
"""A strategy that the page on data of one's own registers."""
OVERLAPS = ("none", "ddp", "horovod")


def example() -> str:
    """The class of `REGISTERED`, as the page has it."""
    page = Path(__file__).parent.parent / "docs" / "your-data.md"
    text = page.read_text(encoding="utf-8")
    block = next(block for block in text.split("```python\n") if "@register" in block)
    return block.partition("\nvalues =")[0]


def measure(
    exchange: str, environment: Mapping[str, str] | None = None, **values: object
) -> dict[str, float]:
    """One fresh process: CPU s to import, to load the kernel and to read the scenario, CPU s of the
    epoch, its events in SimPy's queue, CPU s of as many bare timeouts, MB resident at most. In the
    keys of ``values`` a double underscore stands for a dot."""
    given = {key.replace("__", "."): value for key, value in values.items()}
    out = subprocess.run(
        [
            sys.executable,
            "-c",
            CHILD,
            json.dumps({"workload.exchange": exchange, **given}),
            example() if exchange == REGISTERED else "",
        ],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    ).stdout
    return dict(json.loads(out))


def main(repeats: int) -> None:
    """Print the median of every figure for every strategy, and the ratios of the overlaps."""
    measure("local_shuffle")  # compile and warm the caches
    strategies(repeats)
    overlaps(repeats)


def overlaps(repeats: int) -> None:
    """Print the least CPU of an epoch with each overlap, runs in turn, over that without; at most
    1.5 times is wanted for DDP and its five buckets."""
    runs: dict[str, list[float]] = {overlap: [] for overlap in OVERLAPS}
    for _ in range(repeats):
        for overlap, spent in runs.items():
            found = measure(PARTIAL, workload__allreduce__overlap=overlap)
            spent.append(found["epoch_s"])
    print(
        f"\n{'allreduce.overlap':44s} {'least CPU s':>12s} {'most CPU s':>12s} {'ratio':>6s}"
    )
    for overlap, spent in runs.items():
        ratio = min(spent) / min(runs["none"])
        print(f"{overlap:44s} {min(spent):12.2f} {max(spent):12.2f} {ratio:6.2f}")


def strategies(repeats: int) -> None:
    """Print the median of every figure for every strategy."""
    print(
        f"{'strategy':44s} {'start CPU s':>12s} {'epoch CPU s':>12s} {'events':>9s}"
        f" {'limit s':>8s} {'peak MB':>8s}"
    )
    for exchange in (
        PARTIAL,
        REGISTERED,
        "partial_local_shuffle:exchange_fraction=0.7",
        "local_shuffle",
        "global_shuffle:source=pfs",
        "global_shuffle:source=ssd",
    ):
        runs = [measure(exchange) for _ in range(repeats)]
        median = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        print(
            f"{exchange:44s} {median['start_s']:12.2f} {median['epoch_s']:12.2f}"
            f" {median['events']:9,.0f} {median['limit_s']:8.2f} {median['peak_MB']:8.0f}"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
