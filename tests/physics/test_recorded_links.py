"""Samples of what links have carried, between the events of the network, by hand."""

import numpy as np
import pytest
import simpy

from simshuffle.fabric.network.batch import TransferBatch, pad_routes, tasks
from simshuffle.fabric.network.fluid import FluidNetwork
from simshuffle.job.sim import recorder as recording
from simshuffle.job.sim.recorder import LinkSamples, Recorder, SampledClock
from simshuffle.job.sim.simulate import simulate_epochs
from tests.small import uneven


def sampled_clock(length: float) -> tuple[SampledClock, LinkSamples]:
    """A clock of two links of 10 and 4 B/s, with samples for about ``length`` s."""
    network = FluidNetwork([10.0, 4.0])
    samples = LinkSamples(network, length)
    return SampledClock(simpy.Environment(), network, samples), samples


def post(clock: SampledClock, link: int, nbytes: float) -> None:
    clock.post(TransferBatch(tasks(1, work=nbytes), pad_routes([[link]])))


def test_links_are_sampled_at_even_intervals_between_events():
    """300 samples of 300 s: one a second. 50 B over 10 B/s, of which 25 are left after 2.5 s, when
    the link slows down to 5 B/s; and 4 B over the other link from 3.25 s on, for 1 s."""
    clock, samples = sampled_clock(300.0)
    env = clock.env

    def sends():
        post(clock, 0, 50.0)
        yield env.timeout(2.5)
        clock.set_capacity(np.array([0], np.int32), np.array([5.0]))
        yield env.timeout(0.75)
        post(clock, 1, 4.0)
        yield env.timeout(5.0)

    samples.begin(0.0)
    env.process(sends())
    env.run()
    assert env.now == 8.25
    sampled_at, work = samples.end(8.25)
    assert sampled_at.tolist() == [*range(9), 8.25]
    assert work[:, 0] == pytest.approx([0, 10, 20, 27.5, 32.5, 37.5, 42.5, 47.5, 50, 50])
    assert work[:, 1] == pytest.approx([0, 0, 0, 0, 3, 4, 4, 4, 4, 4])


@pytest.mark.parametrize(
    ("end", "sampled"), [(12.0, [0, 1, 2]), (12 + 5e-10, [0, 1, 2]), (12 + 2e-9, [0, 1, 2, 2])]
)
def test_samples_of_an_epoch_count_from_its_begin(end, sampled):
    """30 B at 10 B/s from 9 s on; the epoch begins at 10 s and ends with a sample, or less than a
    nanosecond after one."""
    clock, samples = sampled_clock(300.0)
    env = clock.env

    def sends():
        yield env.timeout(9.0)
        post(clock, 0, 30.0)
        yield env.timeout(1.0)
        samples.begin(10.0)
        yield env.timeout(3.0)

    env.process(sends())
    env.run(until=end)
    sampled_at, work = samples.end(end)
    assert sampled_at == pytest.approx(sampled, abs=1e-8)
    assert work[:, 0] == pytest.approx(10.0 * sampled_at, rel=1e-6)
    assert samples.next_at == np.inf


@pytest.mark.parametrize(
    ("end", "count", "step"),
    [
        (5.985, 600, 0.01),  # 599 samples and the last one: twice 300
        (7.0, 351, 0.02),  # the 601st came at 6 s: every second stays, and 50 more come
    ],
)
def test_a_longer_epoch_has_every_second_sample(end, count, step):
    clock, samples = sampled_clock(3.0)
    samples.begin(0.0)
    post(clock, 1, 400.0)
    clock.env.run(until=end)
    sampled_at, work = samples.end(end)
    assert len(sampled_at) == len(work) == count
    assert np.diff(sampled_at)[:-1] == pytest.approx(step)
    assert work[:, 1] == pytest.approx(4.0 * sampled_at, rel=1e-6)
    samples.begin(end)  # the next epoch keeps the step
    assert samples.next_at == pytest.approx(end + step)


@pytest.mark.parametrize(("most_values", "count"), [(1 << 25, 300), (400, 100), (40, 64)])
def test_many_links_have_fewer_samples(monkeypatch, most_values, count):
    """Values of two links, of twice as many samples as are wanted."""
    monkeypatch.setattr(recording, "MOST_VALUES", most_values)
    _, samples = sampled_clock(6.0)
    samples.begin(1.0)
    assert samples.next_at == pytest.approx(1.0 + 6.0 / count)


def test_shares_of_links_between_samples_add_up_to_what_they_carried():
    """In every epoch, against the table of links; 1 is all that a link can do."""
    recorder = Recorder(0.05)
    scenario = uneven(epochs=2, workload__exchange="partial_local_shuffle:exchange_fraction=0.3")
    for timeline in simulate_epochs(scenario, recorder=recorder):
        record = recorder.record
        links = record.resources.links
        share = record.utilisation()
        work = (share * np.diff(record.sampled_at)[:, None]).sum(axis=0) * links.capacity
        assert work == pytest.approx(record.work[-1], rel=1e-5)
        assert 0.9 < share.max() < 1.0 + 1e-3
        table = timeline.links[timeline.links["unit"] == "B"].set_index("link")["nbytes"]
        carried = dict(zip(links.names, work, strict=True))
        assert [carried[link] for link in table.index] == pytest.approx(table, rel=1e-4)
