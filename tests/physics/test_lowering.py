"""Transfers of plans, worked out by hand: two ranks on two hosts of one switch, 10 GB/s a link.

No clock is needed: what is checked are bytes, seconds, links and order of every transfer.
"""

from typing import Any

import numpy as np
import pytest

from simshuffle.fabric.network.batch import NO_PAIR, NONE, TASK, TransferBatch
from simshuffle.job.lowering.background import BURSTS, ENDLESS, bursts, steady, writes
from simshuffle.job.lowering.collectives import Allreduces, gather_seconds
from simshuffle.job.lowering.messages import (
    MessageGraph,
    MessageLowering,
    StoreLowering,
    delivery_counts,
    exchange_costs,
    messages_of,
)
from simshuffle.job.lowering.reads import FILLED, ReadChains, read_chains
from simshuffle.job.lowering.staging import staging_traffic
from simshuffle.job.plan.epochs import Reads
from simshuffle.job.plan.jobs import place_jobs, share_machine
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.model import StepTimes
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.rng import lognormal_factor
from simshuffle.workload.exchange import ExchangePlan, MessageSchedule
from tests.small import small

SCENARIO = small(world_size=2)
DATASET = SCENARIO.workload.dataset  # 100 kB, decoded 500 kB in 1 ms, encoded in 0.5 ms
COSTS: dict[str, Any] = {
    "barriers": "message",
    "payload": "decoded",
    "read": "30 us",
    "zero_buffer": "60 us",
    "pickle": "90 us",
    "draw": "1 us",
    "remove": "20 us",
}
LATENCY = 1.3e-6  # of a message
SEEK = 80e-6  # of the SSD


def resources_of(scenario: Any = SCENARIO) -> Resources:
    return Resources(scenario.cluster, scenario.world_size, scenario.rng("placement"))


RESOURCES = resources_of()
LINK = {name: number for number, name in enumerate(RESOURCES.links.names)}


def schedule(**values: Any) -> MessageSchedule:
    return MessageSchedule.model_validate(COSTS | values)


def links(batch: TransferBatch) -> list[list[str]]:
    """Names of the links of every transfer."""
    return [
        [RESOURCES.links.names[link] for link in route if link >= 0]
        for route in batch.routes.tolist()
    ]


def edges(batch: TransferBatch) -> set[tuple[int, int]]:
    return set(zip(batch.edge_from.tolist(), batch.edge_to.tolist(), strict=True))


# Samples 0 and 1 are swapped, then both ranks keep one, each a message after iteration 0; then one
# more swap after iteration 1. Partners are drawn for each of the first two. Rank 1 has its first
# sample in memory.
NBYTES = np.array([100e3, 200e3, 100e3, 100e3, 300e3, 100e3])
PLAN = ExchangePlan(
    sample=np.array([[0, 1], [2, 3], [4, 5]]),
    target=np.array([[1, 0], [0, 1], [1, 0]]),
    iteration=np.array([0, 0, 1]),
    message=np.array([0, 1, 2]),
    draws=np.array([1, 1, 0]),
)
CACHED = np.array([[False, True], [True, True], [False, False]])


def costs_of(plan: ExchangePlan = PLAN, cached: Any = CACHED, **values: Any) -> Any:
    return exchange_costs(
        plan, schedule(**values), DATASET, nbytes=NBYTES, cached=cached, iterations=2
    )


# ------------------------------------------------------------------------------------------- costs


def test_bytes_and_seconds_of_an_exchange():
    """Work is 90 us a sample, and 1.09 ms for each 100 kB; a permutation of 2 ranks takes 2 us."""
    costs = costs_of()
    assert costs.stored.tolist() == [[100e3, 200e3], [0, 0], [300e3, 100e3]]
    assert costs.wire.tolist() == [[500e3, 1e6], [0, 0], [1.5e6, 500e3]]
    assert costs.cached.tolist() == [[False, True], [False, False], [False, False]]
    assert costs.work == pytest.approx(
        np.array([[1.18e-3, 2.27e-3], [0, 0], [3.36e-3, 1.18e-3]]), rel=1e-12
    )
    assert costs.draw == pytest.approx([2e-6, 2e-6, 0])
    assert costs.sent.tolist() == [[500e3, 1e6], [1.5e6, 500e3]]
    assert costs.received.tolist() == [[200e3, 100e3], [100e3, 300e3]]
    assert costs.received_work == pytest.approx(np.array([[1e-3, 0.5e-3], [0.5e-3, 1.5e-3]]))
    assert costs.remove == pytest.approx([40e-6, 40e-6])
    assert (costs.read_memory, costs.read_ssd) == (200e3, 500e3)


def test_encoded_samples_travel_as_they_are_stored():
    costs = costs_of(payload="encoded")
    assert costs.wire.tolist() == [[100e3, 200e3], [0, 0], [300e3, 100e3]]
    assert costs.work[0] == pytest.approx([90e-6 + 90e-6, 90e-6 + 180e-6])
    assert not costs.received_work.any()


def test_a_plan_that_draws_nothing_is_charged_nothing():
    plan = ExchangePlan(PLAN.sample, PLAN.target, PLAN.iteration, PLAN.message)
    assert costs_of(plan, draw="1 s").draw.tolist() == [0, 0, 0]


# ---------------------------------------------------------------------------------------- messages


def lowered(barriers: str, costs: Any = None, iteration: int = 0, **more: Any) -> MessageGraph:
    """Groups: 5 and 6 of the last work, 7 and 8 of the messages of rank 0 and 1."""
    costs = costs or costs_of()
    found = messages_of(costs, iteration, RESOURCES, reads_in_flight=1)
    lowering = MessageLowering(
        RESOURCES, schedule(barriers=barriers), serial_pairs=more.get("pairs", True)
    )
    return lowering.graph(found, [5, 6], [7, 8])


def test_messages_of_an_iteration():
    first, second = messages_of(costs_of(), 0, RESOURCES, reads_in_flight=1)
    assert first.target.tolist() == [1, 0]
    assert first.read == pytest.approx([100e3 / 3e9, 0])
    assert (first.missed_files.tolist(), first.missed_nbytes.tolist()) == ([1, 0], [100e3, 0])
    assert first.cached_nbytes.tolist() == [0, 200e3]
    assert first.work == pytest.approx([1.182e-3, 2.272e-3])
    assert first.nbytes.tolist() == [500e3, 1e6]
    assert not first.mixed.any()
    assert second.target.tolist() == [0, 1]
    assert second.work == pytest.approx([2e-6, 2e-6])
    assert not (second.missed_files.any() or second.cached_nbytes.any() or second.nbytes.any())
    # each rank sends one message and receives one
    assert delivery_counts([first, second], 2).tolist() == [2, 2]
    (third,) = messages_of(costs_of(), 1, RESOURCES, reads_in_flight=1)
    assert third.work == pytest.approx([3.36e-3, 1.18e-3])


def test_a_message_is_a_read_then_work_then_the_wire():
    """With a barrier before each message. Two barriers, reads of both messages, works of both, and
    the wires of the first: who keeps its sample has none."""
    graph = lowered("message")
    batch = graph.batch
    assert graph.rank[graph.is_sent].tolist() == [NONE, NONE, *[0, 1] * 5]
    reads = [["h0000.ssd"], ["h0001.memory"], ["h0000.memory"], ["h0001.memory"]]
    wires = [["h0000>switch", "switch>h0001"], ["h0001>switch", "switch>h0000"]]
    assert links(batch) == [[], [], *reads, [], [], [], [], *wires]
    of = batch.tasks
    assert of["work"] == pytest.approx([0, 0, 100e3 / 3e9, 200e3, 0, 0, 0, 0, 0, 0, 500e3, 1e6])
    assert of["nbytes"].tolist() == [0, 0, 100e3, 200e3, 0, 0, 0, 0, 0, 0, 500e3, 1e6]
    assert of["delay"] == pytest.approx(
        [LATENCY, LATENCY, SEEK, 0, 0, 0, 1.182e-3, 2.272e-3, 2e-6, 2e-6, LATENCY, LATENCY]
    )
    assert of["account"].tolist() == [NONE, NONE, 0, 1, 0, 1, 0, 1, 0, 1, NONE, NONE]
    assert of["pair"].tolist() == [NO_PAIR] * 10 + [0 * 2 + 1, 1 * 2 + 0]
    # the last work sets a rank free; a wire counts for its sender and its receiver
    assert of["group"].tolist() == [NONE] * 8 + [5, 6, 7, 8]
    assert of["group2"].tolist() == [NONE] * 10 + [8, 7]
    first = {(0, 2), (0, 3), (2, 6), (3, 7), (6, 10), (7, 11)}
    second = {(6, 1), (7, 1), (1, 4), (1, 5), (4, 8), (5, 9)}
    assert edges(batch) == first | second


def test_one_barrier_an_iteration():
    """The second message of a rank follows the first one's work at once."""
    batch = lowered("iteration").batch
    assert len(batch) == 11
    first = {(0, 1), (0, 2), (1, 5), (2, 6), (5, 9), (6, 10)}
    assert edges(batch) == first | {(5, 3), (6, 4), (3, 7), (4, 8)}


def test_without_barriers_ranks_are_posted_one_after_the_other():
    """Each is an item of its own: read, read, work, work, wire, wire; the second read waits for the
    first work."""
    graph = lowered("none", pairs=False)
    assert len(graph.batch) == 10
    for rank in (0, 1):
        batch = of_rank(rank, graph.by_rank())
        tasks = batch.tasks
        assert edges(batch) == {(0, 2), (2, 4), (2, 1), (1, 3), (3, 5)}
        nbytes = [100e3 * (rank + 1), 0, 0, 0, 500e3 * (rank + 1), 0]
        assert tasks["nbytes"].tolist() == nbytes
        assert tasks["group"].tolist() == [NONE, NONE, NONE, 5 + rank, 7 + rank, NONE]
        assert tasks["pair"].tolist() == [NO_PAIR] * 6
        assert links(batch)[4][0] == f"h000{rank}>switch"
        # the wire of the message that the rank keeps does nothing
        assert (links(batch)[5], tasks["delay"][5], tasks["work"][5]) == ([], 0, 0)


def test_a_message_of_samples_from_ssd_and_memory_is_read_twice():
    """Rank 0 sends 100 kB from the SSD and 300 kB from memory, rank 1 both from memory."""
    plan = ExchangePlan(
        sample=np.array([[0, 1], [4, 5]]),
        target=np.array([[1, 0], [1, 0]]),
        iteration=np.array([0, 0]),
        message=np.array([0, 0]),
    )
    costs = costs_of(plan, np.array([[False, True], [True, True]]))
    batch = lowered("none", costs).batch
    # reads, works, wires, second reads
    assert links(batch)[:2] == [["h0000.ssd"], ["h0001.memory"]]
    assert links(batch)[6:] == [["h0000.memory"], []]
    assert batch.tasks["nbytes"].tolist() == [100e3, 300e3, 0, 0, 2e6, 1.5e6, 300e3, 0]
    assert edges(batch) == {(0, 6), (6, 2), (2, 4), (1, 7), (7, 3), (3, 5)}


def test_each_message_of_an_iteration_may_be_read_twice():
    """Of two samples in each of two messages, rank 1 has the first one on the SSD and the other in
    memory, rank 0 both in memory."""
    plan = ExchangePlan(
        sample=np.array([[0, 1], [2, 3], [3, 0], [5, 4]]),
        target=np.array([[1, 0]] * 4),
        iteration=np.array([0] * 4),
        message=np.array([0, 0, 1, 1]),
    )
    costs = costs_of(plan, np.array([[True, False], [True, True]] * 2))
    for message in messages_of(costs, 0, RESOURCES, reads_in_flight=1):
        assert message.mixed.tolist() == [False, True]
    batch = lowered("none", costs).batch
    # reads and works of both messages, their wires, then their second reads
    assert links(batch)[:4] == [["h0000.memory"], ["h0001.ssd"]] * 2
    assert links(batch)[12:] == [[], ["h0001.memory"]] * 2
    # rank 0 sends 100 + 100 kB, then 100 + 100 kB; rank 1 200 + 100 kB, then 100 + 300 kB
    read_nbytes = batch.tasks["nbytes"][[0, 1, 2, 3, 12, 13, 14, 15]]
    assert read_nbytes.tolist() == [200e3, 200e3, 200e3, 100e3, 0, 100e3, 0, 300e3]
    assert batch.tasks["work"][[13, 15]].tolist() == [100e3, 300e3]
    assert batch.tasks["delay"][:4] == pytest.approx([0, SEEK, 0, SEEK])
    assert batch.tasks["account"].tolist() == [*[0, 1] * 4, *[NONE] * 4, *[0, 1] * 2]
    chain = {(0, 12), (12, 4), (4, 8), (4, 2), (2, 14), (14, 6), (6, 10)}
    second_rank = {(begin + 1, end + 1) for begin, end in chain}
    # of rank 0 no message is read twice, but its place is kept
    assert edges(batch) == chain | second_rank


def test_messages_of_a_job_have_accounts_and_pairs_of_their_own():
    """Of 7 ranks, of which 4 are another job's: ranks 4, 5 and 6 send to the next of them. The ends
    of works and of wires are noted from the tag 100 on, message by message."""
    jobs = {"a": {"world_size": 4}, "b": {"world_size": 3}}
    part = share_machine(place_jobs(small(jobs=jobs))).parts["b"]
    plan = ExchangePlan(
        sample=np.array([[0, 1, 2], [3, 4, 5]]),
        target=np.array([[1, 2, 0], [2, 0, 1]]),
        iteration=np.array([0, 0]),
        message=np.array([0, 1]),
    )
    costs = costs_of(plan, np.zeros((2, 3), bool))
    found = messages_of(costs, 0, part, reads_in_flight=1)
    lowering = MessageLowering(part, schedule(barriers="none"), serial_pairs=True)
    batch = lowering.graph(found, 5, [7, 8, 9], first_tag=100).batch
    works, wires = batch.tasks[6:12], batch.tasks[12:]
    assert works["account"].tolist() == [4, 5, 6] * 2
    pairs = [(4, 5), (5, 6), (6, 4), (4, 6), (5, 4), (6, 5)]
    assert wires["pair"].tolist() == [src * 7 + dst for src, dst in pairs]
    assert works["tag"].tolist() == [100, 101, 102, 106, 107, 108]
    assert wires["tag"].tolist() == [103, 104, 105, 109, 110, 111]
    assert wires["group"].tolist() == [7, 8, 9] * 2
    assert wires["group2"].tolist() == [8, 9, 7, 9, 7, 8]
    # the first host of the job is the fifth of the machine
    assert [part.links.names[link] for link in wires_of(batch)] == [
        f"h{host:04d}>switch" for host in (4, 5, 6) * 2
    ]


def of_rank(rank: int, batch: TransferBatch) -> TransferBatch:
    """The transfers of one of two ranks, which come one after the other."""
    rows = slice(rank * len(batch) // 2, (rank + 1) * len(batch) // 2)
    return TransferBatch(batch.tasks[rows], batch.routes[rows], batch.edge_from, batch.edge_to)


def wires_of(batch: TransferBatch) -> list[int]:
    """The first link of each of the last six transfers."""
    return batch.routes[-6:, 0].tolist()


def test_what_is_received_is_encoded_and_written():
    batch = of_rank(0, StoreLowering(RESOURCES, costs_of(), in_memory=False).batch(0, 9, group2=4))
    assert links(batch) == [[], ["h0000.ssd"]]
    assert batch.tasks["delay"].tolist() == [1e-3, 0]
    assert batch.tasks["work"].tolist() == [0, 200e3 / 1e9]
    assert batch.tasks["nbytes"].tolist() == [0, 200e3]
    assert (batch.tasks["group"].tolist(), batch.tasks["group2"].tolist()) == ([-1, 9], [-1, 4])
    assert edges(batch) == {(0, 1)}
    memory = of_rank(1, StoreLowering(RESOURCES, costs_of(), in_memory=True).batch(1, 9))
    assert links(memory) == [[], ["h0001.memory"]]
    assert memory.tasks["work"].tolist() == [0, 300e3]


# ------------------------------------------------------------------------------------------- reads


READS = Reads(  # one batch; of rank 0, four samples are in memory
    samples=np.array([[10, 10]]),
    nbytes=np.array([[1e6, 2e6]]),
    hit_samples=np.array([[4, 0]]),
    hit_nbytes=np.array([[400e3, 0.0]]),
)
JITTER = np.array([[1.5, 1.0]])


def chains(exchange: str, keys: Any = None, **loader: int) -> Any:
    scenario = small(
        **{"world_size": 2, **(keys or {})},
        workload__exchange=exchange,
        workload__loader={"workers": 2, "prefetch": 4, **loader},
    )
    rng = scenario.rng("read_latency", 1)
    found = read_chains(READS, scenario.workload, resources_of(scenario), jitter=JITTER, rng=rng)
    assert rng.random() == scenario.rng("read_latency", 1).random()  # no latency was drawn
    return found


def chain(found: ReadChains, rank: int, group: int) -> TransferBatch:
    """The transfers of a rank's first batch, whose worker has the queue of the rank's number."""
    queues = np.arange(2, dtype=np.int32)
    return of_rank(rank, found.batch(0, np.full(2, group, np.int32), queues))


def draw_chains(scenario: Scenario) -> ReadChains:
    """The chains of `READS`, with latencies drawn where storage has them."""
    rng = np.random.default_rng(0)
    return read_chains(READS, scenario.workload, resources_of(scenario), jitter=JITTER, rng=rng)


def test_a_batch_from_the_pfs():
    """Opens, bytes, what is in memory, decoding on one core, the copy to the GPU, one after the
    other. The PFS answers an open in 1 ms, so a thread opens 1000 files a second."""
    found = chains("global_shuffle")
    batch = chain(found, 0, 3)
    assert links(batch) == [
        ["pfs.open"],
        ["pfs.bandwidth", "pfs>pfs.switch", "pfs.switch>switch", "switch>h0000"],
        ["h0000.memory"],
        ["h0000.cores"],
        ["h0000.pcie_in"],
    ]
    copied = 10 * SCENARIO.workload.model.input_size
    assert batch.tasks["work"] == pytest.approx([6 * 1.5, 600e3, 400e3, 10e-3, copied])
    assert batch.tasks["nbytes"].tolist() == [0, 600e3, 400e3, 0, copied]
    assert batch.tasks["delay"] == pytest.approx([0, 26e-9, 0, 0, 0])
    assert batch.tasks["cap"].tolist() == pytest.approx([1000, np.inf, np.inf, 1, np.inf])
    # two transfers count for the batch, and the end of the last read is marked
    assert batch.tasks["group"].tolist() == [NONE, NONE, 3, NONE, 3]
    assert batch.tasks["mark"].tolist() == [0, 0, 1, 0, 0]
    assert edges(batch) == {(0, 1), (1, 2), (2, 3), (3, 4)}
    assert found.first_stages == (0,)
    assert (found.sums.nbytes["pfs"], found.sums.nbytes["memory"]) == (2.6e6, 400e3)
    other = chain(found, 1, 4)
    assert other.tasks["work"][:4] == pytest.approx([10, 2e6, 0, 20e-3])


def test_a_slow_host_decodes_longer():
    """Half as fast, it needs twice the core-seconds, and nothing else changes."""
    scenario = small(world_size=2, workload__exchange="global_shuffle")
    rng, slow = scenario.rng("read_latency", 1), np.array([1.0, 2.0])
    found = read_chains(READS, scenario.workload, RESOURCES, jitter=JITTER, rng=rng, decoding=slow)
    alike = read_chains(READS, scenario.workload, RESOURCES, jitter=JITTER, rng=rng)
    expected = alike.filled.copy()
    expected[1, :, -2, FILLED.index("work")] *= 2
    assert found.filled == pytest.approx(expected, rel=1e-12)


def test_reads_that_no_batch_needs_are_left_out():
    """Where all is in memory the chain begins there; where nothing is read at all, with an empty
    read of the source. A batch with nothing to read does not wait for the network either."""
    scenario = small(world_size=2, workload__exchange="global_shuffle")
    copy = ["pcie_in"]

    def devices(**reads: Any) -> tuple[list[str], Any]:
        found = read_chains(
            Reads(**{name: np.array([values]) for name, values in reads.items()}),
            scenario.workload,
            RESOURCES,
            jitter=np.ones((1, 2)),
            rng=np.random.default_rng(0),
        )
        batch = chain(found, 0, 3)
        return [route[0].split(".")[-1] for route in links(batch)], found

    nbytes = [1e6, 2e6]
    memory, _ = devices(samples=[10, 10], nbytes=nbytes, hit_samples=[10, 10], hit_nbytes=nbytes)
    assert memory == ["memory", "cores", *copy]
    empty, _ = devices(samples=[0, 0], nbytes=[0.0] * 2, hit_samples=[0, 0], hit_nbytes=[0.0] * 2)
    assert empty == ["open", "bandwidth", "cores", *copy]
    both, found = devices(
        samples=[10, 10], nbytes=nbytes, hit_samples=[10, 4], hit_nbytes=[1e6, 5e5]
    )
    assert both == ["open", "bandwidth", "memory", "cores", *copy]
    delays = found.filled[:, 0, 1, FILLED.index("delay")]
    assert delays.tolist() == [0.0, pytest.approx(26e-9)]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_thread_waits_for_one_request_of_the_object_store_at_a_time(threads):
    """6 and 10 requests of 3 ms, one after the other or two at once, each over a connection of 100
    MB/s."""
    store = {"latency": "3 ms", "connection_bandwidth": "100 MB/s", "request_rate": "1 k/s"}
    scenario = small(
        world_size=2,
        workload__exchange="global_shuffle:source=object_store",
        workload__loader={"workers": 2, "prefetch": 4, "threads": threads},
        cluster__object_store=store,
    )
    found = draw_chains(scenario)
    for rank in (0, 1):
        caps = chain(found, rank, 3).tasks["cap"]
        assert caps[:2] == pytest.approx([threads / 3e-3, threads * 100e6])


def test_each_try_of_a_request_counts_against_the_rate_of_the_store():
    """6 and 10 requests, each tried twice in the mean; the first batch has 1.5 times as many."""
    store = {"latency": "3 ms", "retry_share": 0.5, "retry_delay": "1 ms", "request_rate": "1 k/s"}
    keys = {"cluster__object_store": store}
    scenario = small(world_size=2, workload__exchange="global_shuffle:source=object_store", **keys)
    found = draw_chains(scenario)
    works = [chain(found, rank, 3).tasks["work"][0] for rank in (0, 1)]
    assert works == pytest.approx([12 * 1.5, 20])


def test_what_is_filled_are_the_first_columns_of_a_transfer():
    assert TASK.names is not None and TASK.names[: len(FILLED)] == FILLED
    assert {TASK[name] for name in FILLED} == {np.dtype(np.float64)}


def test_a_batch_waits_for_the_one_before_it_where_its_chain_begins():
    """The queue of the second rank's worker is 1: its last transfer is then the copy."""
    tasks = chain(chains("global_shuffle", threads=3), 1, 3).tasks
    assert tasks["after"].tolist() == [1, NONE, NONE, 1, NONE]
    assert tasks["last_of"].tolist() == [NONE, NONE, NONE, NONE, 1]


def test_several_threads_decode_while_they_read():
    """The worker's next batch waits for both; three threads open three times as fast."""
    found = chains("global_shuffle", threads=3)
    batch = chain(found, 0, 3)
    assert edges(batch) == {(0, 1), (1, 2), (2, 4), (3, 4)}
    assert found.first_stages == (0, 3)
    assert batch.tasks["cap"].tolist() == pytest.approx([3000, np.inf, np.inf, 3, np.inf])


def test_a_batch_from_the_ssd():
    """Bytes at 3 GB/s, which is slower than 6 requests at 400 k/s; the latencies of six reads pass
    one after the other, or two at a time with two threads."""
    found = chains("local_shuffle")
    batch = chain(found, 0, 3)
    assert links(batch)[0] == ["h0000.ssd"]
    assert batch.tasks["work"][0] == pytest.approx(600e3 / 3e9 * 1.5)
    assert batch.tasks["delay"][0] == pytest.approx(6 * SEEK)
    assert (found.sums.nbytes["ssd"], found.sums.nbytes["memory"]) == (2.6e6, 400e3)
    two = chain(chains("local_shuffle", threads=2), 0, 3)
    assert two.tasks["delay"][0] == pytest.approx(3 * SEEK)


DRAWN = {
    "workload__dataset__samples_per_file": 8,
    "workload__dataset__samples_per_request": 4,
    "cluster__object_store": {"latency": "3 ms", "latency_spread": 1e-9, "request_rate": "1 k/s"},
    "cluster__parallel_file_system__latency": "2 ms",
    "cluster__parallel_file_system__latency_spread": 1e-9,
}


@pytest.mark.parametrize(
    ("source", "latency", "per_request"), [("pfs", 2e-3, 1 / 2), ("object_store", 3e-3, 1.0)]
)
@pytest.mark.parametrize(
    ("threads", "seconds"),
    [
        # 6 and 10 samples in requests of 4: two and three, one after the other
        (1, lambda latency: (2 * latency, 3 * latency)),
        # two at once, and each thread decodes 4 ms before its next one
        (2, lambda latency: (latency + 4e-3, 2 * (latency + 4e-3))),
    ],
)
def test_requests_that_are_drawn_are_whole(source, latency, per_request, threads, seconds):
    """They differ by a billionth. A file of 8 samples takes two requests, but half a file is open
    for each; the requests of a batch are as many as its samples need, and last as long as whole
    ones."""
    exchange = f"global_shuffle:source={source}"
    scenario = small(
        world_size=2,
        workload__exchange=exchange,
        workload__loader={"workers": 2, "prefetch": 4, "threads": threads},
        **DRAWN,
    )
    found = draw_chains(scenario)
    for rank, samples in enumerate((6, 10)):
        first = chain(found, rank, 3).tasks[0]
        requests = samples / 4 * per_request
        assert first["work"] == pytest.approx(requests * JITTER[0, rank])
        expected = requests / seconds(latency)[rank]
        assert first["cap"] == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(("gpus", "in_flight", "rate"), [(1, 1, 1e3), (1, 2, 2e3), (2, 2, 4e3)])
def test_the_ranks_of_a_host_queue_at_its_ssd_together(
    gpus: int, in_flight: int, rate: float
) -> None:
    """Requests at 1 k/s for each that is in flight: of a message, and of a batch."""
    curve = {"points": {depth: f"{depth} k/s" for depth in (1, 2, 4, 8)}}
    keys = {"cluster__host__gpus": gpus, "cluster__ssd__iops": curve}
    shared = resources_of(small(world_size=2, **keys))
    first, _ = messages_of(costs_of(), 0, shared, in_flight)
    assert first.read == pytest.approx([1 / rate, 0])
    batch = chain(chains("local_shuffle", keys, workers=in_flight), 0, 3)
    assert batch.tasks["work"][0] == pytest.approx(6 / rate * 1.5)


@pytest.mark.parametrize("kind", ["uniform", "permutation", "on_off"])
def test_the_traffic_of_others_goes_to_all_of_them_and_to_nobody_itself(kind: str) -> None:
    """Among three hosts, whatever is drawn: what each sends to, of 20 streams."""
    hosts = ["h0001", "h0002", "h0004"]
    record = {"kind": kind, "load": 0.3, "hosts": hosts}
    record |= {"partners": 2} if kind == "uniform" else {}
    record |= {"on": "1 ms", "off": "1 ms"} if kind == "on_off" else {}
    scenario = small(background=[record])
    resources, (others,) = resources_of(scenario), scenario.background
    names = resources.links.names
    pairs = set()
    for number in range(20):
        rng = np.random.default_rng(number)
        batches = [steady(others, resources, rng)] if kind != "on_off" else []
        batches += [bursts(others, resources, h, rng) for h in range(3) if kind == "on_off"]
        for batch in batches:
            routes = [[names[link] for link in route if link >= 0] for route in batch.routes]
            pairs |= {(first[:5], last[-5:]) for first, *_, last in routes}
            assert batch.tasks["cap"] == pytest.approx(3e9 / (2 if kind == "uniform" else 1))
    assert pairs == {(one, other) for one in hosts for other in hosts if one != other}


TWO_HCAS = {
    "cluster__host__gpus": 2,
    "cluster__host__hcas": 2,
    "cluster__topology__hcas_per_host": 2,
    "cluster__topology__cable_latency": "40 us",
}
HOSTS = ["h0001", "h0002", "h0004"]


def neighbour(**record: Any) -> tuple[Any, Resources]:
    """A record of traffic among three hosts of two HCAs each, whose messages take 80 us."""
    scenario = small(background=[{"hosts": HOSTS, **record}], **TWO_HCAS)
    assert scenario.background is not None
    return scenario.background[0], resources_of(scenario)


def test_bursts_of_a_host_follow_one_another_over_all_its_hcas() -> None:
    """3 GB/s of each of two HCAs for the seconds of the burst, after the silence, and then the
    latency of two cables: both are drawn after the receivers, from the same stream."""
    record, resources = neighbour(kind="on_off", load=0.3, on="2 ms", off="1 us")
    batch = bursts(record, resources, 1, np.random.default_rng(5))
    rng = np.random.default_rng(5)
    receivers = rng.integers(2, size=BURSTS)
    seconds, silence = rng.exponential(2e-3, BURSTS), rng.exponential(1e-6, BURSTS)
    flows = batch.tasks.reshape(BURSTS, 2)
    for hca in (0, 1):
        assert flows["work"][:, hca] == pytest.approx(3e9 * seconds)
        assert flows["nbytes"][:, hca] == pytest.approx(3e9 * seconds)
        assert flows["delay"][:, hca] == pytest.approx(silence + 80e-6)
        assert (flows["cap"][:, hca] == 3e9).all()
    last_links = [route[route >= 0][-1] for route in batch.routes]
    names = [resources.links.names[link] for link in last_links]
    # of hosts 0, 1, 2 the second one sends to the others
    hosts = np.array(["h0001", "h0004"])[receivers]
    ports = [f"{host}#{hca}" for host in hosts for hca in (0, 1)]
    assert [name.split(">")[1] for name in names] == ports
    assert edges(batch) == {
        (2 * burst + hca, 2 * burst + 2 + later)
        for burst in range(BURSTS - 1)
        for hca in (0, 1)
        for later in (0, 1)
    }


@pytest.mark.parametrize(("partners", "others"), [(1, 1), (2, 2), (7, 2)])
def test_a_host_has_at_most_all_others_as_partners(partners: int, others: int) -> None:
    """Flows of an HCA share 3 GB/s; each goes on for ever, after the latency of two cables."""
    record, resources = neighbour(kind="uniform", load=0.3, partners=partners)
    batch = steady(record, resources, np.random.default_rng(0))
    assert len(batch) == 3 * others * 2
    assert (batch.tasks["cap"] == 3e9 / others).all()
    assert (batch.tasks["work"] == ENDLESS).all() and (batch.tasks["nbytes"] == ENDLESS).all()
    assert batch.tasks["delay"] == pytest.approx(80e-6)
    names = np.array([*resources.links.names, ""])[batch.routes]
    pairs = {(route[0], route[1]) for route in names.tolist()}
    assert len(pairs) == len(batch)  # no flow twice


def test_hosts_write_an_equal_part_over_each_hca() -> None:
    record, resources = neighbour(kind="periodic_writes", period="1 s", nbytes="5 MB")
    batch = writes(record, resources)
    assert batch.tasks["work"].tolist() == batch.tasks["nbytes"].tolist() == [2.5e6] * 6


# ---------------------------------------------------------------------------- staging and gradients


def staged(exchange: str, **staging: Any) -> Any:
    scenario = small(world_size=2, workload__exchange=exchange, workload__staging=staging)
    return staging_traffic(scenario.workload, resources_of(scenario), np.array([3e6, 1e6]))


def test_shards_are_staged_through_the_network_into_the_ssd():
    """A new link for the SSD of each host stands behind those of the run: 1 GB/s of writing."""
    traffic, count = staged("local_shuffle"), len(RESOURCES.links.names)
    assert traffic.links.capacity[count:].tolist() == [1e9, 1e9]
    for host, route in enumerate(traffic.batch.routes):
        way = ["pfs.bandwidth", "pfs>pfs.switch", "pfs.switch>switch", f"switch>h000{host}"]
        assert route[:5].tolist() == [*(LINK[name] for name in way), count + host]
    assert traffic.batch.tasks["work"].tolist() == [3e6, 1e6]
    assert traffic.nbytes == 4e6


def test_the_whole_set_is_read_by_each_host_or_passed_round():
    alone = staged("global_shuffle:source=ssd")
    assert (alone.batch.tasks["work"].tolist(), alone.nbytes) == ([4e6, 4e6], 8e6)
    ring = staged("global_shuffle:source=ssd", broadcast=True)
    assert (ring.batch.tasks["work"].tolist(), ring.nbytes) == ([2e6] * 4, 4e6)
    count = len(RESOURCES.links.names)
    assert ring.batch.routes[2][:3].tolist() == [
        LINK["h0000>switch"],
        LINK["switch>h0001"],
        count + 1,
    ]


def test_files_are_opened_on_the_way():
    """800 files of 5 kB: 20,000 opens a second are 100 MB/s for all; two copies at once with 1 ms
    each are 10 MB/s for a host."""
    traffic, count = staged("local_shuffle", format="files", copies=2), len(RESOURCES.links.names)
    assert traffic.links.capacity[count:] == pytest.approx([1e9, 1e9, 1e8, 1e7, 1e7])
    ends = [[link for link in route if link >= count] for route in traffic.batch.routes.tolist()]
    assert ends == [[count + 2, count + 3, count + 0], [count + 2, count + 4, count + 1]]


SHARDS = np.array([1e6, 2e6, 3e6, 4e6, 5e6, 6e6])


def staged_on_three_hosts(exchange: str, hcas: int, only: Any = None, **staging: Any) -> Any:
    """Six ranks on hosts of two GPUs, with samples of 5 kB in files of eight."""
    scenario = small(
        **{**TWO_HCAS, "cluster__host__hcas": hcas, "cluster__topology__hcas_per_host": hcas},
        world_size=6,
        workload__exchange=exchange,
        workload__staging=staging,
        workload__dataset__num_samples=4200,
        workload__dataset__samples_per_file=8,
    )
    return staging_traffic(scenario.workload, resources_of(scenario), SHARDS, only)


@pytest.mark.parametrize(
    ("hcas", "expected"), [(2, [1e6, 2e6, 3e6, 4e6, 5e6, 6e6]), (1, [3e6, 7e6, 11e6])]
)
def test_ranks_of_an_hca_have_one_flow_of_their_shards(hcas, expected):
    """21 MB: 525 files of 40 kB, or one archive for each flow."""
    traffic = staged_on_three_hosts("local_shuffle", hcas)
    assert traffic.batch.tasks["work"].tolist() == expected
    assert traffic.batch.tasks["tag"].tolist() == [*range(len(expected))]
    assert (traffic.nbytes, traffic.read_requests) == (21e6, len(expected))
    files = staged_on_three_hosts("local_shuffle", hcas, format="files")
    assert files.read_requests == pytest.approx(525)


@pytest.mark.parametrize(
    ("only", "read"),
    [(None, [21e6 / 2] * 6), ([1, 1, 0, 1, 0, 0], [21e6 / 2] * 2 + [0, 10.5e6, 0, 0])],
)
def test_each_host_reads_the_whole_set_over_its_hcas(only, read):
    chosen = None if only is None else np.array(only, bool)
    traffic = staged_on_three_hosts(
        "global_shuffle:source=ssd", 2, chosen, broadcast=only is not None
    )
    assert traffic.batch.tasks["work"] == pytest.approx(read)
    assert traffic.nbytes == pytest.approx(sum(read))


def test_a_ring_of_three_hosts_passes_on_two_thirds_over_each_hca():
    """Each host reads a third of 21 MB; each of two HCAs passes on half of 14 MB to the same HCA of
    the next host. Latencies are those of the cables on the way, 40 us each."""
    traffic = staged_on_three_hosts("global_shuffle:source=ssd", 2, broadcast=True)
    work = traffic.batch.tasks["work"]
    assert work[:6] == pytest.approx(7e6 / 2) and work[6:] == pytest.approx(14e6 / 2)
    assert len(work) == 12 and traffic.nbytes == pytest.approx(21e6)
    assert traffic.batch.tasks["delay"][6:] == pytest.approx(80e-6)
    scenario = small(**TWO_HCAS, world_size=6)
    names = resources_of(scenario).links.names
    rows = [[link for link in route if link >= 0] for route in traffic.batch.routes[6:].tolist()]
    for row, (host, hca) in zip(rows, [(h, k) for h in range(3) for k in range(2)], strict=True):
        receiver = (host + 1) % 3
        assert [names[row[0]], names[row[-2]]] == [
            f"h{host:04d}>switch#{hca}",
            f"switch>h{receiver:04d}#{hca}",
        ]
        assert row[-1] == len(names) + receiver


def test_hosts_pass_on_over_as_many_hcas_as_all_of_them_use():
    """The third host has one rank of five, so a single HCA: 14 MB over it, and over the first HCA
    of the others. One host alone passes nothing on."""
    keys = {**TWO_HCAS, "workload__staging": {"broadcast": True}}
    keys["workload__exchange"] = "global_shuffle:source=ssd"
    for ranks, passed_on in ((5, [14e6] * 3), (2, [])):
        scenario = small(**keys, world_size=ranks)
        shards = np.full(ranks, 21e6 / ranks)
        traffic = staging_traffic(scenario.workload, resources_of(scenario), shards)
        assert traffic is not None
        assert traffic.batch.tasks["work"][ranks:] == pytest.approx(passed_on)


def test_nothing_is_staged_that_is_read_from_the_pfs():
    assert staged("global_shuffle") is None


def test_gradients_of_two_hosts_go_round_a_ring():
    """2 (M - 1) / M of the gradients over each host's link."""
    workload = SCENARIO.workload
    rng = np.random.default_rng(0)
    batch = Allreduces(workload.allreduce, RESOURCES, rng).batch(100e6)
    assert batch is not None
    assert batch.tasks["work"].tolist() == pytest.approx([100e6, 100e6])
    assert links(batch)[0][1:3] == ["h0000>switch", "switch>h0001"]
    one = Allreduces(workload.allreduce, resources_of(small(world_size=1)), rng)
    assert one.batch(100e6) is None
    assert one.seconds(100e6, SCENARIO.network) == 0.0


def test_importances_are_gathered():
    """One message latency for two ranks, then 100 doubles over the HCA."""
    assert gather_seconds(100.0, RESOURCES) == pytest.approx(LATENCY + 800 / 10e9)
    assert gather_seconds(0.0, RESOURCES) is None
    assert gather_seconds(1.0, resources_of(small(world_size=1))) is None


def test_ranks_of_one_host_gather_over_its_memory():
    """Two message latencies for four ranks, then 3 x 100 doubles over a quarter of 100 GB/s."""
    host = resources_of(small(world_size=4, cluster__host__gpus=4))
    assert gather_seconds(100.0, host) == pytest.approx(2 * LATENCY + 2400 / 25e9)


def test_seconds_of_batches():
    samples = np.array([[10, 4], [10, 0]])
    times = StepTimes.model_validate({"forward": "1 s", "backward": "2 s"})
    assert times.backward_of(samples).T.tolist() == [[20.0, 20.0], [8.0, 0.0]]


def test_jitter_has_mean_1_and_the_spread_asked_for():
    """Five standard errors over 100,000 draws."""
    drawn = lognormal_factor(np.random.default_rng(0), 0.3, (100, 1000))
    assert drawn.mean() == pytest.approx(1.0, abs=5 * 0.3 / np.sqrt(1e5))
    assert drawn.std() == pytest.approx(0.3, rel=0.02)
    assert (lognormal_factor(np.random.default_rng(0), 0.0, (2, 3)) == 1.0).all()
