"""Random small scenarios for the relations between runs: by number, the same in every process.

Half of them are drawn from what machines and trainings are like, half from all that a scenario file
may say: quantities over many orders of magnitude, one sample, one rank, one worker.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from simshuffle.job.scenario.scenario import Scenario
from tests.small import small


class _Draw:
    """Draws from one stream; ``extreme`` widens every range by ``wider`` orders of magnitude."""

    def __init__(self, number: int, extreme: bool) -> None:
        self._rng = np.random.default_rng([number, int(extreme)])
        self.extreme = extreme

    def number(self, low: float, high: float, wider: float = 2.0) -> float:
        """Log-uniform from ``low`` to ``high``."""
        more = 10.0**wider if self.extreme else 1.0
        return float(np.exp(self._rng.uniform(np.log(low / more), np.log(high * more))))

    def quantity(self, low: float, high: float, unit: str, wider: float = 2.0) -> str:
        """The same with a unit."""
        return f"{self.number(low, high, wider):.6g} {unit}"

    def latency(self, low: float, high: float) -> str:
        """Seconds, also none at all."""
        return "0 s" if self.chance(0.2) else self.quantity(low, high, "s")

    def whole(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return int(self._rng.integers(low, high + 1))

    def one_of(self, choices: Sequence[Any]) -> Any:
        """One of them."""
        return choices[int(self._rng.integers(len(choices)))]

    def chance(self, share: float) -> bool:
        """True in this share of the draws."""
        return bool(self._rng.random() < share)


def random_values(number: int, extreme: bool) -> dict[str, Any]:
    """Values by dotted key that make `tests.small.small` the scenario of that number."""
    draw = _Draw(number, extreme)
    gpus = draw.one_of([1, 1, 2, 4])
    world_size = draw.whole(2, 16) if not draw.chance(0.05) else 1
    batch = draw.whole(1, 8)
    samples = max(
        world_size,
        int(world_size * batch * draw.number(1.0, 8.0, 0.3)) + draw.whole(0, batch),
        batch,
    )
    machine, exchange = _cluster(draw, gpus, -(-world_size // gpus)), _exchange(draw)
    values = {
        **machine,
        "world_size": world_size,
        "epochs": draw.whole(2, 3),
        "seed": draw.whole(0, 10**6),
        "workload.local_batch_size": batch,
        "workload.last_batch": draw.one_of(["nearest", "nearest", "keep", "drop", "carry"]),
        **_dataset(draw, samples),
        **_model(draw, machine["cluster.host.hcas"]),
        "workload.exchange": exchange,
        "workload.loader": {
            "workers": draw.whole(1, 4),
            "prefetch": draw.whole(1, 8),
            "threads": draw.one_of([1, 1, 1, 2, 4]),
            "across_epochs": draw.chance(0.2) and "schedule" not in exchange,
        },
        "workload.staging": {
            "format": draw.one_of(["archive", "files"]),
            "target": draw.one_of(["ssd", "ssd", "ssd", "memory"]),
            "copies": draw.whole(1, 4),
            "broadcast": draw.chance(0.5),
        },
        "workload.jitter": {
            "compute": draw.one_of([0, 0.02, draw.number(0.01, 0.5, 0.5)]),
            "read": draw.one_of([0, 0.1, draw.number(0.01, 0.5, 0.5)]),
        },
        "network": _network(draw),
    }
    if values["workload.last_batch"] == "drop":  # or no step is made, which is refused
        dataset = values["workload.dataset"]
        dataset["num_samples"] = max(dataset["num_samples"], world_size * batch)
    values["workload.allreduce"]["overlap"] = _overlap(draw)
    values["workload.model.layers"] = _layers(draw, values["workload.model.gradient_size"])
    spread = draw.one_of([0.0, 0.0, draw.number(0.1, 1.0, 0.3)])
    values["cluster.parallel_file_system"]["latency_spread"] = spread
    return values


def random_scenario(number: int, extreme: bool, **changes: Any) -> Scenario:
    """The scenario of that number with other values; a double underscore stands for a dot."""
    values = random_values(number, extreme)
    return with_values(values | {key.replace("__", "."): value for key, value in changes.items()})


@cache
def _base() -> Scenario:
    return small()


def with_values(values: dict[str, Any]) -> Scenario:
    """`tests.small.small` with these values: without reading a file again."""
    return _base().with_values(values)


def _cluster(draw: _Draw, gpus: int, hosts: int) -> dict[str, Any]:
    """The machine: enough hosts for the ranks."""
    hcas = draw.one_of([k for k in (1, 2) if gpus % k == 0])
    links = {
        "link_bandwidth": draw.quantity(1e9, 25e9, "B/s"),
        "cable_latency": draw.latency(1e-8, 1e-6),
        "switch_latency": draw.latency(1e-8, 1e-6),
    }
    topology: dict[str, Any]
    if hcas > 1 or draw.chance(0.5):
        spare = draw.whole(0, 3)
        topology = {"kind": "star", "hosts": hosts + spare, "hcas_per_host": hcas, **links}
    else:
        arity = draw.whole(2, 4)
        levels = 1
        while arity**levels < hosts:
            levels += 1
        topology = {"kind": "fat_tree", "levels": levels, "arity": arity, **links}
        topology["taper"] = arity / draw.whole(1, arity)
    return {
        "cluster.topology": topology,
        "cluster.placement": draw.one_of(["compact", "scattered"]),
        "cluster.host.gpus": gpus,
        "cluster.host.hcas": hcas,
        "cluster.host.pcie_slots": draw.one_of([k for k in (1, 2, 4) if gpus % k == 0]),
        "cluster.host.cores": draw.one_of([1, 2, 4, 16]),
        "cluster.host.pcie_bandwidth": draw.quantity(4e9, 32e9, "B/s"),
        "cluster.host.nvlink_bandwidth": draw.quantity(2e10, 3e11, "B/s"),
        "cluster.ssd": {
            "source": "drawn",
            "capacity": "1e18 B",
            "read_bandwidth": draw.quantity(5e8, 7e9, "B/s"),
            "write_bandwidth": draw.quantity(2e8, 3e9, "B/s"),
            "latency": draw.latency(1e-5, 2e-4),
            **({"iops": draw.quantity(1e4, 1e6, "1/s")} if draw.chance(0.6) else {}),
        },
        "cluster.memory": {
            "source": "drawn",
            "capacity": "1e18 B",
            "bandwidth": draw.quantity(2e10, 3e11, "B/s"),
            "page_cache": draw.one_of(["0 B", draw.quantity(1e5, 1e8, "B"), "1e15 B"]),
        },
        "cluster.parallel_file_system": {
            "source": "drawn",
            "read_bandwidth": draw.quantity(5e9, 1e11, "B/s"),
            "open_rate": draw.quantity(5e3, 1e5, "1/s"),
            "latency": draw.latency(1e-4, 5e-3),
            "link_bandwidth": draw.quantity(1e9, 25e9, "B/s"),
            "link_latency": draw.latency(1e-8, 1e-6),
            "links_per_switch": draw.whole(1, 4),
            **({"client_bandwidth": draw.quantity(5e8, 1e10, "B/s")} if draw.chance(0.3) else {}),
            "background_load": draw.one_of([0.0, 0.0, 0.3]),
        },
        "cluster.message_passing": {
            "source": "drawn",
            "latency": draw.latency(5e-7, 2e-5),
            **({"stream_bandwidth": draw.quantity(1e8, 1e10, "B/s")} if draw.chance(0.3) else {}),
        },
    }


def _dataset(draw: _Draw, samples: int) -> dict[str, Any]:
    mean = draw.number(2e4, 5e6)
    per_file = draw.one_of([1, 1, 1, 10, 64])
    return {
        "workload.dataset": {
            "name": "drawn",
            "num_samples": samples,
            "sample_size": {
                "mean": f"{mean:.6g} B",
                "std": f"{draw.one_of([0.0, 0.5, 1.0, draw.number(0.1, 2, 0.3)]) * mean:.6g} B",
            },
            "decoded_size": {"mean": f"{draw.number(1.0, 8.0) * mean:.6g} B"},
            "decode": draw.latency(5e-4, 1e-2),
            "encode": draw.latency(5e-4, 1e-2),
            "samples_per_file": per_file,
            "samples_per_request": draw.one_of([1, per_file]),
        }
    }


ONE_FOR_EACH_HCA = {
    "ring": "rings",
    "tree": "channels",
    "nccl": "channels",
    "halving_doubling": "rails",
    "recursive_doubling": "rails",
    "torus": "rails",
    "hierarchical": "leaders",
    "sharp": "rails",
    "nvls": "channels",
    "sparse": "rails",
}
"""The key of each allreduce algorithm that says over how many HCAs its bytes are spread."""


def _model(draw: _Draw, hcas: int) -> dict[str, Any]:
    kind, channels = draw.one_of(list(ONE_FOR_EACH_HCA)), draw.whole(1, hcas)
    bandwidths = {
        "intra_host_bus_bandwidth": draw.quantity(1e10, 2e11, "B/s"),
        "inter_host_bus_bandwidth": draw.quantity(2e9, 2e10, "B/s"),
    }
    latencies = {
        f"{of}{where}_host_latency": draw.latency(1e-6, 5e-5)
        for of in (("ring_", "tree_") if kind == "nccl" else ("",))
        for where in ("intra", "inter")
    }
    number: dict[str, Any] = {ONE_FOR_EACH_HCA[kind]: channels}
    if kind == "hierarchical":
        number["among_hosts"] = draw.one_of(["ring", "halving_doubling"])
    if kind == "sparse":
        number["density"] = draw.one_of([0.001, 0.1, 1])
        number["selection_bandwidth"] = draw.quantity(1e9, 1e11, "B/s")
    return {
        "workload.allreduce": {
            "source": "drawn",
            "kind": kind,
            **number,
            **bandwidths,
            **latencies,
        },
        "workload.model.gradient_size": draw.quantity(1e6, 2e8, "B"),
        "workload.model.input_size": draw.quantity(1e5, 1e7, "B"),
        "workload.model.accelerators.v100-sxm2-16gb": {
            "forward": draw.quantity(2e-4, 5e-3, "s"),
            "backward": draw.quantity(4e-4, 1e-2, "s"),
            "update": draw.latency(1e-4, 1e-3),
        },
    }


def _overlap(draw: _Draw) -> dict[str, Any]:
    kind = draw.one_of(["none", "none", "ddp", "horovod"])
    if kind == "none":
        return {"kind": kind}
    costs = {"slowdown": draw.one_of([0.0, 0.25, 0.5]), "hooks": draw.latency(1e-4, 3e-3)}
    if kind == "ddp":
        sizes = {
            "bucket": draw.quantity(1e6, 5e7, "B"),
            "first_bucket": draw.quantity(1e5, 5e6, "B"),
        }
        return {"source": "drawn", "kind": kind, **costs, **sizes}
    return {
        "source": "drawn",
        "kind": kind,
        **costs,
        "fusion": draw.quantity(1e6, 1e8, "B"),
        "cycle": draw.quantity(1e-3, 1e-2, "s", 0.5),
        "negotiation": draw.latency(1e-5, 1e-4),
        "negotiation_per_rank": draw.latency(1e-6, 1e-5),
    }


def _layers(draw: _Draw, gradient: str) -> dict[str, Any] | None:
    """Of four bytes a parameter; None in half of the draws."""
    if draw.chance(0.5):
        return None
    total, count = round(float(gradient.removesuffix(" B")) / 4), draw.whole(1, 12)
    shares = [draw.number(1.0, 100.0, 0.0) for _ in range(count)]
    ends = (np.cumsum(shares) / sum(shares) * total).round().astype(int)
    return {
        "parameters": np.diff(ends, prepend=0).clip(min=1).tolist(),
        "backward": [draw.one_of([0, 1, draw.number(0.1, 10.0, 0.0)]) for _ in ends[1:]] + [1],
    }


def _exchange(draw: _Draw) -> dict[str, Any]:
    kind = draw.one_of(
        [
            *["partial_local_shuffle"] * 3,
            *["importance_exchange"] * 2,
            *["importance_pair"] * 2,
            "local_shuffle",
            "global_shuffle",
        ]
    )
    if kind == "global_shuffle":
        return {"kind": kind, "source": draw.one_of(["pfs", "ssd"])}
    if kind == "local_shuffle":
        return {"kind": kind, "source": draw.one_of(["pfs", "ssd"])}
    out: dict[str, Any] = {
        "kind": kind,
        "exchange_fraction": draw.one_of([0.0, 1.0, *np.arange(0.05, 1.0, 0.05).round(2).tolist()]),
        "schedule": _schedule(draw, kind),
    }
    if kind != "partial_local_shuffle":
        out["lagging"] = draw.chance(0.5)
        out["selection"] = draw.one_of(
            ["importance", "sqrt_importance", "highest", "lowest", "random"]
        )
    return out


def _schedule(draw: _Draw, kind: str) -> dict[str, Any]:
    rules = ["random", "random_pairs"]
    if kind != "partial_local_shuffle":
        rules.append("importance_sorted")
    lifetime = draw.one_of(["sample", "iteration", "epoch"])
    several = 1 if lifetime == "sample" else draw.one_of([1, 2, 5, "iteration"])
    out: dict[str, Any] = {
        "partner_rule": draw.one_of(rules),
        "partner_scope": draw.one_of(["all", "all", "all", "rack", "leaf", "host"]),
        "partner_lifetime": lifetime,
        "samples_per_message": several,
        "barriers": draw.one_of(["message", "iteration", "none"]),
        "payload": draw.one_of(["decoded", "encoded"]),
        "overlap": draw.chance(0.7),
    }
    for key, low, high in (
        ("read", 5e-6, 1e-4),
        ("zero_buffer", 5e-6, 5e-4),
        ("remove", 5e-6, 1e-4),
    ):
        out[key] = draw.latency(low, high)
    out["draw"] = draw.latency(1e-9, 1e-7)
    for key in ("decode", "pickle", "write"):
        if draw.chance(0.3):
            out[key] = draw.latency(1e-5, 1e-2)
    return out


def _network(draw: _Draw) -> dict[str, Any]:
    kind = draw.one_of(["fluid"] * 6 + ["analytic", "packet"])
    if kind == "fluid":
        return {"kind": kind, "fair_share": draw.one_of(["pair", "pair", "message"])}
    # large packets, so that no scenario has many
    return (
        {"kind": kind}
        if kind == "analytic"
        else {"kind": kind, "mtu": "1e6 B", "port_buffer": "1.6e7 B"}
    )
