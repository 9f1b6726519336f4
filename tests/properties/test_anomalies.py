"""The smallest cases in which a better machine, or more to do, does the unexpected: each worked out
by hand. docs/model-bounds.md, "Anomalies", explains them."""

from typing import Any

import pytest
import simpy

from simshuffle.fabric.network import Packet
from simshuffle.fabric.network.packet_records import TICK
from simshuffle.job.plan.epochs import plan_epochs, sample_nbytes
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.simpy_network import SimpyNetwork
from simshuffle.job.sim.simulate import simulate
from tests.small import small

FREE = {
    "workload__model__gradient_size": "1 B",
    "workload__model__input_size": "1 B",
    "workload__allreduce__inter_host_latency": "0 s",
    "workload__allreduce__intra_host_latency": "0 s",
    "workload__local_batch_size": 1,
}
WIRE = 0.03
"""ms of up to two samples on cables and in memory."""
NOTHING = {"read": "0 s", "zero_buffer": "0 s", "remove": "0 s", "draw": "0 s", "pickle": "0 s"}


def milliseconds(scenario: Scenario) -> float:
    """Of the last epoch."""
    phases = simulate(scenario).phases
    ends = phases.groupby("epoch", observed=True)["end_s"].max()
    return float(ends.diff().fillna(ends).iloc[-1]) * 1e3


def machine(read: float, compute: float, decode: float = 0.0, **more: Any) -> Scenario:
    """A sample of mean size takes ``read`` ms of an SSD, ``decode`` ms of a core, and ``compute``
    ms; all else takes no time."""
    reads = f"{1e8 / read} B/s" if read else "1e30 B/s"
    ssd = {"source": "", "capacity": "1 TB", "latency": "0 s"}
    ssd |= {"read_bandwidth": reads, "write_bandwidth": "1e30 B/s"}
    step = {"forward": f"{compute / 2} ms", "backward": f"{compute / 2} ms", "update": "0 s"}
    values = {
        "cluster__ssd": ssd,
        "cluster__message_passing": {"source": "", "latency": "0 s"},
        "workload__dataset__decode": f"{decode} ms",
        "workload__model__accelerators__v100-sxm2-16gb": step,
    }
    return small(**FREE | values | more)


def lone(workers: int, prefetch: int) -> float:
    """ms of one rank with two samples, each a batch that takes 1 ms to read and 1 ms to compute."""
    loader = {"workers": workers, "prefetch": prefetch}
    return milliseconds(
        machine(1, 1, world_size=1, workload__dataset__num_samples=2, workload__loader=loader)
    )


def test_twice_the_workers_share_the_device_and_the_first_batch_comes_late():
    """Twice the prefetch does the same."""
    # read 0-1 and 1-2, compute 1-2 and 2-3; or both read 0-2, then computed 2-3 and 3-4
    assert lone(workers=1, prefetch=2) == pytest.approx(3)
    assert lone(workers=2, prefetch=1) == pytest.approx(3)
    assert lone(workers=2, prefetch=2) == pytest.approx(4)


def test_more_cores_start_a_read_that_is_in_the_way_of_a_more_urgent_one():
    found = {}
    for cores in (1, 2):
        host = {"cluster__host__gpus": 2, "cluster__host__cores": cores, "world_size": 2}
        data = {"num_samples": 6, "sample_size__std": "100 kB"}
        data = {f"workload__dataset__{key}": value for key, value in data.items()}
        loader = {"workers": 2, "prefetch": 3}
        scenario = machine(1, 4, 1, seed=307, **host, **data, workload__loader=loader)
        timeline = simulate(scenario)
        first = timeline.phases[timeline.phases["iteration"] == 1].set_index(["rank", "phase"])
        found[cores] = milliseconds(scenario), first["end_s"] * 1e3
    (one, before), (two, after) = found[1], found[2]
    assert two > one * 1.004
    # rank 1 has its batch earlier, and reads the next; rank 0, which all wait for, reads until then
    # with half of the SSD less
    earlier = before[1, "decode"] - after[1, "decode"]
    assert earlier > 0.1
    assert after[0, "io"] - before[0, "io"] == pytest.approx(earlier / 2)


def exchange(fraction: float, compute: float, decode: float, **more: Any) -> Scenario:
    """Two ranks with two samples each, one a batch. To store what is received takes 5 ms."""
    schedule = {"barriers": "none", "overlap": False, "payload": "encoded", "write": "5 ms"}
    schedule |= {"partner_rule": "random_pairs", "partner_lifetime": "iteration", **NOTHING}
    schedule |= {"samples_per_message": "iteration", **more.pop("schedule", {})}
    strategy = {"kind": "partial_local_shuffle", "exchange_fraction": fraction}
    values = {
        "world_size": 2,
        "workload__dataset__num_samples": 4,
        "workload__exchange": {**strategy, "schedule": schedule},
        "workload__loader": {"workers": 1, "prefetch": 1},
    }
    return machine(0, compute, decode, **values, **more)


def test_what_the_floor_leaves_for_the_last_iteration_is_hidden_by_nothing():
    # batches are ready at 10 and 20 ms and take 2 ms: with Q = 1 the first exchange, 12-17, is over
    # when the second batch comes; floor(0.9) = 0, so with Q = 0.9 both samples go at 22 ms
    assert milliseconds(exchange(1.0, compute=2, decode=10)) == pytest.approx(27, abs=WIRE)
    assert milliseconds(exchange(0.9, compute=2, decode=10)) == pytest.approx(32, abs=WIRE)


def test_a_rank_that_draws_itself_sends_nothing():
    # the first permutation of two ranks exchanges them, the second leaves them in place. With Q = 1
    # each serves for one sample, with Q = 0.9 the first for both
    found = {}
    for fraction in (0.9, 1.0):
        scenario = exchange(fraction, 2, 0, seed=2, schedule={"partner_rule": "random"})
        found[fraction] = milliseconds(scenario)
    assert found == pytest.approx({0.9: 2 + 2 + 10, 1.0: 2 + 5 + 2}, abs=WIRE)


def test_who_holds_the_large_samples_decides_and_the_exchange_redraws_it():
    found = {}
    for fraction in (0.0, 0.5):
        varied = {"workload__dataset__sample_size__std": "100 kB", "seed": 7, "epochs": 2}
        scenario = exchange(fraction, 1e-6, 10, schedule={"write": "0 s"}, **varied)
        nbytes = sample_nbytes(scenario)
        plan = list(plan_epochs(scenario, nbytes))[-1]
        # the rank with more bytes to decode, 10 ms for 100 kB
        expected = plan.training.nbytes.sum(axis=0).max() / 1e5 * 10
        found[fraction] = milliseconds(scenario)
        assert found[fraction] == pytest.approx(expected, rel=1e-3)
    assert found[0.5] < 0.8 * found[0.0]


def test_a_packet_takes_a_tick_on_the_fastest_cable():
    env = simpy.Environment()
    net = SimpyNetwork(env, capacity=[1e30], model=Packet(mtu="1 B", port_buffer="4 B"))
    done = net.transfer([0], 1000.0)
    env.run()
    assert done.value.finish == 1000 * TICK
