"""Jobs side by side on one machine, against what follows by hand from max-min fair shares.

Every worker of every loader has one read under way, and servers share themselves equally among
reads. So a job gets of a busy server what its workers are of all workers: with r ranks beside s
others, r / (r + s). Edges: the first batches come before anything is computed, and the last ones
are computed when nothing is read any more; `EDGE` s bound both.
"""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from simshuffle.fabric.network import Fluid, Links
from simshuffle.fabric.network.batch import TransferBatch, tasks
from simshuffle.fabric.network.models import shared_network
from simshuffle.job.plan.findings import slow_cable_facts
from simshuffle.job.plan.jobs import isolate_job, place_jobs
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.clock import NetworkClock
from simshuffle.job.sim.jobs import simulate_jobs
from simshuffle.job.sim.links import Peaks
from simshuffle.job.sim.simulate import simulate
from simshuffle.report import report
from simshuffle.report.timeline import Timeline, concatenate
from tests.small import small

EDGE = 0.2
"""s: at most four batches of a rank are computed after the last one was read, 28 ms each, and the
last reads of a job's ranks end within a batch of 10 files of each other."""
AT_ONCE = {
    "workload__exchange": "global_shuffle:source=pfs",
    "workload__dataset__decode": "0 s",
    "cluster__parallel_file_system__latency": "0 s",
}
"""A worker has a read under way all the time."""
FROM_PFS = {**AT_ONCE, "cluster__parallel_file_system__open_rate": "400 /s"}


def together(scenario: Scenario) -> dict[str, Timeline]:
    """The timeline of each job beside the others."""
    names = {name: name for name in scenario.jobs or {}}
    found: dict[str, list[Timeline]] = {name: [] for name in names}
    for job, timeline in simulate_jobs(place_jobs(scenario), names):
        found[job].append(timeline)
    return {job: concatenate(parts) for job, parts in found.items()}


def by_itself(scenario: Scenario, job: str) -> Timeline:
    return together(isolate_job(place_jobs(scenario), job))[job]


def lasted(timeline: Timeline) -> float:
    return float(report.epochs(timeline)["epoch_s"].sum())


def job(ranks: int, files: int, **more: Any) -> dict[str, Any]:
    return {"world_size": ranks, "workload": {"dataset": {"num_samples": files}}, **more}


def test_the_iterations_of_all_jobs_are_counted_together():
    """8 of a job of one epoch and twice 4 of the other."""
    jobs = {"a": job(1, 80), "b": job(2, 80, epochs=2, start="0.1 s")}
    shares: list[float] = []
    list(simulate_jobs(place_jobs(small(jobs=jobs)), {"a": "a", "b": "b"}, shares.append))
    assert shares == pytest.approx([done / 16 for done in range(1, 17)])


def test_links_of_jobs_carry_in_every_epoch_what_their_share_of_its_time_says():
    """Also in epochs that overlap with those of others, and begin long after the clock did."""
    jobs = {"a": job(4, 400, epochs=2), "b": job(4, 600, epochs=2, start="0.1 s")}
    for timeline in together(small(**FROM_PFS, jobs=jobs)).values():
        epoch_s = report.epochs(timeline).set_index("epoch")["epoch_s"]
        links = timeline.links[timeline.links["unit"] == "B"]
        seconds = epoch_s.loc[links["epoch"]].to_numpy()
        carried = links["mean_utilisation"] * links["capacity"] * seconds
        assert carried.to_numpy() == pytest.approx(links["nbytes"], rel=1e-6)
        assert (links["busy_s"] <= seconds * (1 + 1e-9)).all()
        assert (links["mean_utilisation"] <= links["peak_utilisation"] * (1 + 1e-9)).all()


def test_two_equal_jobs_take_twice_as_long_where_the_servers_bind():
    """1,600 files each at 400 a second: 4 s alone; together each gets 200 a second."""
    scenario = small(**FROM_PFS, jobs={"a": job(4, 1600), "b": job(4, 1600)})
    for timeline in together(scenario).values():
        assert 8.0 <= lasted(timeline) <= 8.0 + EDGE
    assert 4.0 <= lasted(by_itself(scenario, "a")) <= 4.0 + EDGE


def test_jobs_of_two_and_of_six_ranks_get_a_quarter_and_three_quarters():
    """Of 400 files a second 100 and 300; so 800 and 2,400 files take 8 s, and 2 and 6 s alone."""
    scenario = small(**FROM_PFS, jobs={"few": job(2, 800), "many": job(6, 2400)})
    both = together(scenario)
    assert 8.0 <= lasted(both["few"]) <= 8.0 + EDGE
    assert 8.0 <= lasted(both["many"]) <= 8.0 + EDGE
    assert 2.0 <= lasted(by_itself(scenario, "few")) <= 2.0 + EDGE
    assert 6.0 <= lasted(by_itself(scenario, "many")) <= 6.0 + EDGE


def test_a_job_that_ends_leaves_its_share_to_the_other():
    """200 files a second each until 800 are read, after 4 s; the other has 1,600 left, at 400."""
    both = together(small(**FROM_PFS, jobs={"short": job(4, 800), "long": job(4, 2400)}))
    assert 4.0 <= lasted(both["short"]) <= 4.0 + EDGE
    assert 8.0 <= lasted(both["long"]) <= 8.0 + EDGE


def test_a_job_that_starts_later_takes_its_share_from_then_on():
    """400 files in the first second; then both have 1,200 at 200 a second: 6 s."""
    jobs = {"first": job(4, 1600), "later": job(4, 1200, start="1 s")}
    both = together(small(**FROM_PFS, jobs=jobs))
    assert 7.0 <= lasted(both["first"]) <= 7.0 + EDGE
    assert 6.0 <= lasted(both["later"]) <= 6.0 + EDGE
    assert both["later"].phases["start_s"].min() == 1.0


def test_the_bandwidth_of_the_file_system_is_shared_like_its_opens():
    """800 files of 100 kB at 40 MB/s: 2 s alone, 4 s where two jobs get 20 MB/s each."""
    values = {**FROM_PFS, "cluster__parallel_file_system__open_rate": "1 M/s"}
    values["cluster__parallel_file_system__read_bandwidth"] = "40 MB/s"
    scenario = small(**values, jobs={"a": job(4, 800), "b": job(4, 800)})
    for timeline in together(scenario).values():
        assert 4.0 <= lasted(timeline) <= 4.0 + EDGE


LEAVES = {"kind": "fat_tree", "levels": 2, "arity": 4, "link_bandwidth": "1 GB/s"}
LEAVES |= {"cable_latency": "26 ns", "switch_latency": "90 ns", "taper": 2}


@pytest.mark.parametrize("kind", ["fluid", "packet"])
@pytest.mark.parametrize(
    "exchange", ["local_shuffle", "partial_local_shuffle:exchange_fraction=0.5"]
)
def test_jobs_on_leaves_of_their_own_do_not_touch_each_other(exchange, kind):
    """All that they send stays below a switch that the other does not use; nothing is read from
    the file system. So all phases are those of the job alone, to the bit, also as a plain run."""
    jobs = {"a": job(4, 400), "b": job(4, 600, epochs=2, start="0 s", seed=3)}
    exact = {"cluster__topology": LEAVES, "workload__exchange": exchange, "network__kind": kind}
    scenario = place_jobs(small(**exact, workload__jitter={"compute": 0.1, "read": 0.1}, jobs=jobs))
    for name, timeline in together(scenario).items():
        pd.testing.assert_frame_equal(timeline.phases, by_itself(scenario, name).phases)
        plain = simulate(scenario.of_jobs()[name], name)
        pd.testing.assert_frame_equal(timeline.phases, plain.phases)
        pd.testing.assert_frame_equal(timeline.sources, plain.sources)
        own = timeline.links.set_index(["epoch", "link"])
        assert set(plain.links["link"]) <= set(timeline.links["link"])
        # devices of others are not among them, but shared cables are
        hosts = set((scenario.jobs or {})[name].placement or ())
        device = own[~own["tier"].astype(str).str.contains(">")]
        assert {link.split(".")[0] for _, link in device.index} <= hosts


def test_links_of_overlapping_epochs_have_peaks_of_their_own():
    """A link of 10 B/s carries 2 B/s from 0 to 5 s, and 8 B/s more from 2 to 3 s: whoever looks
    from 0 to 5 or from 1 to 4 s sees it full, from 4 to 5 s a fifth of it in use."""
    import simpy

    links = Links(np.array([10.0]), np.zeros(1))
    network = shared_network(Fluid(), links, np.ones(1, bool), width=1)
    clock = NetworkClock(simpy.Environment(), network)
    peaks, env, seen = Peaks(clock), clock.env, {}

    def post(nbytes: float, cap: float) -> None:
        clock.post(TransferBatch(tasks(1, work=nbytes, cap=cap), np.zeros((1, 1), np.int32)))

    def looks(key: int, begin: float, end: float):
        yield env.timeout(begin)
        peaks.restart(key)
        yield env.timeout(end - begin)
        seen[begin, end] = float(peaks.stop(key)[0])

    def sends():
        post(10.0, 2.0)
        yield env.timeout(2.0)
        post(8.0, 8.0)

    env.process(sends())
    for key, span in enumerate([(0.0, 5.0), (1.0, 4.0), (3.5, 4.5)]):
        env.process(looks(key, *span))
    env.run()
    assert seen == pytest.approx({(0.0, 5.0): 1.0, (1.0, 4.0): 1.0, (3.5, 4.5): 0.2})


# ----------------------------------------------------------------------------- traffic of others

ONE_READER = {
    **AT_ONCE,
    "workload__loader": {"workers": 1, "prefetch": 2},
    "workload__dataset__num_samples": 800,
    "cluster__topology__link_bandwidth": "20 MB/s",
    "world_size": 1,
}
"""One read at a time, through a link of 20 MB/s: 80 MB take 4 s."""


def background(*records: dict[str, Any], **values: Any) -> float:
    return lasted(simulate(small(**{**ONE_READER, **values}, background=list(records))))


def test_traffic_of_half_a_link_doubles_what_it_leaves():
    """10 of 20 MB/s are left: 80 MB take 8 s. Asking for all of it gets no more than half, since
    one transfer is as good as another."""
    alone_s = lasted(simulate(small(**ONE_READER)))
    assert 4.0 <= alone_s <= 4.0 + EDGE
    for load, times in ((0.25, 4 / 3), (0.5, 2.0), (1.0, 2.0)):
        found = background({"kind": "permutation", "load": load, "hosts": ["h0000", "h0001"]})
        assert times * 4.0 <= found <= times * 4.0 + EDGE


def test_traffic_between_other_hosts_of_a_star_costs_nothing():
    alone_s = lasted(simulate(small(**ONE_READER)))
    assert background({"kind": "uniform", "load": 1.0}) == pytest.approx(alone_s, rel=1e-12)


def test_uniform_traffic_uses_the_share_of_the_links_that_it_asks_for():
    scenario = small(**ONE_READER, background=[{"kind": "uniform", "load": 0.1, "partners": 3}])
    links = simulate(scenario).links.set_index("link")
    out = [f"h{host:04d}>switch" for host in range(1, 16)]
    found = links.loc[links.index.isin(out)]
    assert len(found) == 15
    assert found["mean_utilisation"].to_numpy() == pytest.approx(0.1, rel=1e-3)
    assert found["peak_utilisation"].to_numpy() == pytest.approx(0.1, rel=1e-9)
    per_second = found["nbytes"] / lasted(simulate(scenario))
    assert per_second.to_numpy() == pytest.approx(2e6, rel=1e-3)


@pytest.mark.parametrize("routing", ["dimension_order", "min_hop"])
def test_traffic_loads_links_of_a_torus_that_no_rank_uses(routing):
    """A ring of eight switches: one rank reads on its first one beside h0004 -> h0005, far from it.
    These ask for half of 20 MB/s each way: of the links to both hosts, and of one cable."""
    ring = {"kind": "torus", "shape": [8], "link_bandwidth": "20 MB/s"}
    ring |= {"cable_latency": "100 ns", "switch_latency": "100 ns"}
    record = {"kind": "permutation", "load": 0.5, "hosts": ["h0004", "h0005"]}
    values = {**ONE_READER, "cluster__topology": ring, "cluster__routing": {"kind": routing}}
    del values["cluster__topology__link_bandwidth"]
    links = simulate(small(**values, background=[record])).links
    half_full = links[links["peak_utilisation"].between(0.499, 0.501) & (links["unit"] == "B")]
    ends = {frozenset(str(name).split(">")) for name in half_full["link"]}
    assert ends == {frozenset(pair) for pair in (("h0004", "s4"), ("s4", "s5"), ("h0005", "s5"))}


def test_bursts_use_their_share_of_the_time_at_their_rate():
    """Bursts of 2 ms at half a link, silences of 6 ms: an eighth in the mean. Some 500 bursts of
    each of 15 hosts: its standard deviation is about sqrt(2 / 7500) of it, so 5 % is 3 of them."""
    record = {"kind": "on_off", "load": 0.5, "on": "2 ms", "off": "6 ms"}
    links = simulate(small(**ONE_READER, background=[record])).links.set_index("link")
    out = [f"h{host:04d}>switch" for host in range(1, 16)]
    assert links.loc[out, "mean_utilisation"].mean() == pytest.approx(0.125, rel=0.05)
    assert links.loc[out, "peak_utilisation"].to_numpy() == pytest.approx(0.5, rel=1e-9)


def test_writes_of_others_take_their_bytes_of_the_servers():
    """Reads and writes share 20 MB/s: until both are done the servers move 80 and 20 MB: 5 s, and
    with a second write at 3.5 s 120 MB: 6 s."""
    wide = {"cluster__topology__link_bandwidth": "10 GB/s"}
    wide["cluster__parallel_file_system__read_bandwidth"] = "20 MB/s"
    once = {"kind": "periodic_writes", "period": "1000 s", "nbytes": "5 MB"}
    once["hosts"] = ["h0004", "h0005", "h0006", "h0007"]
    found = background(once, **wide)
    # each of five transfers gets 4 MB/s until the writes have ended, after 1.25 s
    assert 5.0 <= found <= 5.0 + EDGE
    assert 6.0 <= background({**once, "period": "3.5 s"}, **wide) <= 6.0 + EDGE
    # servers that write no more than 2 MB/s leave 18 MB/s to the reads, whose 80 MB end before
    wide["cluster__parallel_file_system__write_bandwidth"] = "2 MB/s"
    assert 80 / 18 <= background(once, **wide) <= 80 / 18 + EDGE


def test_jobs_have_the_traffic_of_others_beside_them_alone_and_together():
    """A neighbour's traffic is no loss by another job: both runs have it."""
    record = {"kind": "permutation", "load": 0.5, "hosts": ["h0000", "h0009"]}
    jobs = {"a": job(1, 800, placement=["h0000"]), "b": job(1, 80)}
    scenario = small(**ONE_READER, jobs=jobs, background=[record])
    assert 8.0 <= lasted(by_itself(scenario, "a")) <= 8.0 + EDGE
    assert 8.0 <= lasted(together(scenario)["a"]) <= 8.0 + EDGE


@pytest.mark.parametrize(("cable", "used"), [("s0.7>s0.0", 0), ("s0.0>s0.1", 1)])
def test_a_slow_cable_of_a_torus_is_used_only_if_a_route_crosses_it(cable, used):
    """The ranks of h0000 to h0003, in the first row, read from the file system at its first switch:
    no route between them goes round the row."""
    torus = {"kind": "torus", "shape": [8, 8], "link_bandwidth": "20 MB/s"}
    torus |= {"cable_latency": "100 ns", "switch_latency": "100 ns"}
    values = {**ONE_READER, "cluster__topology": torus, "world_size": 4}
    del values["cluster__topology__link_bandwidth"]
    facts = slow_cable_facts(small(**values, cluster__faults={cable: 0.5}))
    assert facts["slow_cables"]["used"] == used
