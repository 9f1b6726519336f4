"""Random scenarios on which windows are compared with whole epochs: by number, the same in every
process.

What loads a batch is drawn in proportion to what computes it, so that there are scenarios whose
accelerators never wait, some that always do, and some between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simshuffle.job.scenario.cluster import Cluster
from simshuffle.job.scenario.scenario import Scenario, load_scenario

MACHINES = (
    "a100-fat-tree",
    "abci",
    "abci-a",
    "dgx2h",
    "h100",
    "horeka",
    "juwels-booster",
    "perlmutter",
    "piz-daint",
    "selene",
    "small-fat-tree",
    "summit",
)
ACCELERATORS = (
    "a100-sxm4-40gb-amp",
    "h100-sxm5-80gb-amp",
    "p100-pcie-16gb-amp",
    "v100-sxm2-16gb",
    "v100-sxm2-16gb-amp",
    "v100-sxm3-32gb-amp",
)
RANK_ITERATIONS = 6_000
"""Of an epoch at most, but for 40 iterations: a scenario then takes a few seconds."""


class _Draw:
    """Draws from the stream of a scenario."""

    def __init__(self, number: int) -> None:
        self._rng = np.random.default_rng([2024, number])

    def number(self, low: float, high: float) -> float:
        """Log-uniform."""
        return float(np.exp(self._rng.uniform(np.log(low), np.log(high))))

    def one_of(self, choices: Sequence[Any]) -> Any:
        """One of them."""
        return choices[int(self._rng.integers(len(choices)))]

    def chance(self, share: float) -> bool:
        """True in this share of the draws."""
        return bool(self._rng.random() < share)


def window_scenario(number: int) -> Scenario:
    """The scenario of that number, from 0, in which all iterations are simulated."""
    draw = _Draw(number)
    machine = draw.one_of(MACHINES)
    cluster = load_scenario("quickstart", _on(machine)).cluster
    ranks = min(round(draw.number(8, 256)), cluster.num_gpus)
    drawn = round(draw.number(40, 600))
    iterations = min(drawn, max(40, RANK_ITERATIONS // ranks))
    exchange = _exchange(draw)
    moves = "schedule" in exchange
    batch = draw.one_of(
        [2, 4, 8] if exchange.get("exchange_fraction", 0) > 0.3 else [4, 16, 32]
    )
    step = draw.number(0.02, 0.3)
    nbytes = draw.number(2e4, 2e6)
    over = draw.one_of([0.0, 0.0, 0.3, 0.7])
    samples = round((iterations + over) * ranks * batch)
    loader, decode = _loader(draw, step, batch, moves)
    rate = batch * nbytes / step  # bytes/s of a rank that never waits
    values = {
        **_on(machine),
        "name": f"random-{number}",
        "world_size": ranks,
        "epochs": 2,
        "seed": number,
        **_storage(draw, cluster, ranks, rate, samples * nbytes, exchange),
        "workload.dataset": {
            "name": "drawn",
            "num_samples": samples,
            "sample_size": {
                "mean": f"{nbytes:.6g} B",
                "std": f"{draw.one_of([0.0, 0.3, 0.9]) * nbytes:.6g} B",
            },
            "decoded_size": {"mean": f"{draw.number(1.0, 5.0) * nbytes:.6g} B"},
            "decode": decode,
            "encode": f"{draw.number(1e-5, 1e-3):.6g} s",
        },
        "workload.model": _model(draw, step, batch),
        "workload.local_batch_size": batch,
        "workload.last_batch": draw.one_of(
            ["nearest", "nearest", "keep", "drop", "carry"]
        ),
        "workload.exchange": exchange,
        "workload.loader": loader,
        "workload.allreduce.rings": cluster.host.hcas,
        "workload.allreduce.overlap": draw.one_of(["none", "none", "ddp", "horovod"]),
        "workload.jitter": {
            "compute": draw.one_of([0.0, 0.01, 0.02, 0.05, 0.1]),
            "read": draw.one_of([0.0, 0.1]),
            "host_decode": draw.one_of([0.0, 0.0, 0.05]),
        },
    }
    if "source" not in exchange and draw.chance(0.15):
        values["workload.staging.target"] = "memory"
    return load_scenario("quickstart", values)


def _on(machine: str) -> dict[str, Any]:
    """Values that put the quickstart on a machine."""
    model = {
        "name": "drawn",
        "gradient_size": "100 MB",
        "input_size": "1 MB",
        "accelerators": {name: {"forward": "1 ms"} for name in ACCELERATORS},
    }
    return {
        "cluster": machine,
        "sweep": {},
        "workload.model": model,
        "workload.allreduce.rings": 1,
        "workload.exchange": "local_shuffle",
        "world_size": 1,
    }


def _model(draw: _Draw, step: float, batch: int) -> dict[str, Any]:
    times = {"forward": f"{step / batch / 3:.6g} s", "update": f"{0.01 * step:.6g} s"}
    return {
        "name": "drawn",
        "gradient_size": f"{draw.number(1e7, 4e8):.6g} B",
        "input_size": f"{draw.number(1e5, 1e6):.6g} B",
        "accelerators": dict.fromkeys(ACCELERATORS, times),
    }


def _loader(
    draw: _Draw, step: float, batch: int, moves: bool
) -> tuple[dict[str, Any], str]:
    """The loader, and what decoding a sample takes: workers are busy for 5 to 150 % of a step."""
    workers = draw.one_of([1, 2, 4, 6])
    threads = draw.one_of([1, 1, 1, 4])
    loader = {
        "workers": workers,
        "prefetch": workers * draw.one_of([1, 2, 2, 4]),
        "threads": threads,
        "across_epochs": draw.chance(0.1) and not moves,
    }
    busy = draw.number(0.05, 1.5)
    return loader, f"{busy * step * workers * threads / batch:.6g} s"


def _storage(
    draw: _Draw,
    cluster: Cluster,
    ranks: int,
    rate: float,
    nbytes: float,
    exchange: dict[str, Any],
) -> dict[str, Any]:
    """Devices that are busy for 2 to 150 or 200 % of a step, and caches smaller than what is
    read."""
    gpus = min(cluster.host.gpus, ranks)
    hosts = -(-ranks // gpus)
    read = nbytes if exchange["kind"] == "global_shuffle" else nbytes / hosts
    cache = draw.one_of([0.0, 0.4, 0.8, 1.0, 3.0, 3.0])
    ssd = gpus * rate / draw.number(0.02, 1.5)
    return {
        "cluster.placement": draw.one_of(["compact", "compact", "scattered"]),
        "cluster.memory.capacity": "1e18 B",
        "cluster.memory.page_cache": f"{cache * read:.6g} B",
        "cluster.ssd": {
            "source": "drawn",
            "capacity": "1e18 B",
            "read_bandwidth": f"{ssd:.6g} B/s",
            "write_bandwidth": f"{draw.number(0.3, 1.0) * ssd:.6g} B/s",
        },
        "cluster.parallel_file_system.read_bandwidth": (
            f"{ranks * rate / draw.number(0.02, 2.0):.6g} B/s"
        ),
        "cluster.parallel_file_system.latency": f"{draw.number(1e-4, 3e-3):.6g} s",
        "cluster.parallel_file_system.latency_spread": draw.one_of([0.0, 0.0, 1.0]),
    }


def _exchange(draw: _Draw) -> dict[str, Any]:
    """A strategy, with one of both schedules."""
    kinds = ["partial_local_shuffle", "importance_exchange", "importance_pair"]
    kind = draw.one_of(
        [*kinds, *kinds, "local_shuffle", "local_shuffle", "global_shuffle"]
    )
    if kind in ("global_shuffle", "local_shuffle"):
        return {"kind": kind, "source": draw.one_of(["pfs", "ssd"])}
    named = draw.one_of(["authors", "streamlined"])
    schedule: dict[str, Any] = {"kind": named, "overlap": draw.chance(0.7)}
    if draw.chance(0.4):
        schedule["partner_lifetime"] = draw.one_of(["iteration", "epoch"])
        schedule["samples_per_message"] = draw.one_of([1, 4, "iteration"])
    fraction = draw.one_of([0.01, 0.03, 0.1, 0.1, 0.3, 1.0])
    more = {} if kind == "partial_local_shuffle" else {"lagging": draw.chance(0.5)}
    return {"kind": kind, "exchange_fraction": fraction, "schedule": schedule, **more}
