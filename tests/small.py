"""A small scenario without randomness, whose epochs can be worked out by hand."""

from simshuffle.scenario.scenario import Scenario, load_scenario

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


def small(**values: object) -> Scenario:
    """`PLAIN` with other values; a double underscore stands for a dot."""
    given = {key.replace("__", "."): value for key, value in values.items()}
    records = tuple(
        f"{key}." for key in given
    )  # a record that is given takes the place of its keys
    plain = {key: value for key, value in PLAIN.items() if not key.startswith(records)}
    return load_scenario("quickstart", plain | given)


def seconds(timeline, phase: str, epoch: int = 1):
    """Seconds of a phase in an epoch, by rank: a mapping, without the ranks that have none."""
    rows = timeline.phases
    rows = rows[(rows["phase"] == phase) & (rows["epoch"] == epoch)]
    return (rows["end_s"] - rows["start_s"]).groupby(rows["rank"]).sum().to_dict()
