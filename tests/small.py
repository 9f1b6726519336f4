"""A small scenario without randomness, whose epochs can be worked out by hand."""

from simshuffle.job.scenario.scenario import Scenario, load_scenario

PLAIN = {
    "cluster": "small-fat-tree",
    "cluster.topology": {
        "kind": "star",
        "hosts": 16,
        "link_bandwidth": "10 GB/s",
        "cable_latency": "0 s",
        "switch_latency": "0 s",
    },
    "cluster.memory.page_cache": "0 B",
    "world_size": 8,
    "epochs": 1,
    "sweep": {},
    "workload.allreduce.rings": 1,
    "workload.allreduce.inter_host_bus_bandwidth": "1 TB/s",
    "workload.jitter": {"compute": 0, "read": 0},
    "workload.local_batch_size": 10,
    "workload.loader": {"workers": 2, "prefetch": 4},
    "workload.dataset": {
        "name": "plain",
        "num_samples": 800,
        "sample_size": {"mean": "100 kB", "std": "0 B"},
        "decoded_size": {"mean": "500 kB"},
        "decode": "1 ms",
        "encode": "0.5 ms",
    },
    "workload.exchange": "local_shuffle",
}

UNEVEN = {
    "cluster__host__gpus": 2,
    "cluster__ssd__iops": {"points": {1: "2 k/s", 4: "12 k/s", 64: "40 k/s"}},
    "cluster__topology__link_bandwidth": "100 MB/s",
    "cluster__topology__cable_latency": "40 us",
    "cluster__memory__page_cache": "3 MB",
    "world_size": 6,
    "epochs": 3,
    "workload__jitter": {"compute": 0.1, "read": 0.2},
    "workload__dataset__num_samples": 170,
    "workload__dataset__sample_size": {"mean": "100 kB", "std": "40 kB"},
}
"""Values beside which nothing is equal by chance: several ranks of a host, samples of other sizes,
curves, latencies that count, shards and batches that do not fill."""


def small(**values: object) -> Scenario:
    """`PLAIN` with other values; a double underscore stands for a dot."""
    given = {key.replace("__", "."): value for key, value in values.items()}
    records = tuple(
        f"{key}." for key in given
    )  # a record that is given takes the place of its keys
    plain = {key: value for key, value in PLAIN.items() if not key.startswith(records)}
    return load_scenario("quickstart", plain | given)


def uneven(**values: object) -> Scenario:
    """`small` with `UNEVEN` beneath the values."""
    return small(**UNEVEN | values)


def seconds(timeline, phase: str, epoch: int = 1):
    """Seconds of a phase in an epoch, by rank: a mapping, without the ranks that have none."""
    rows = timeline.phases
    rows = rows[(rows["phase"] == phase) & (rows["epoch"] == epoch)]
    return (rows["end_s"] - rows["start_s"]).groupby(rows["rank"]).sum().to_dict()
