"""What a loop takes for its batches, worked out by hand for loaders as PyTorch makes them."""

from dataclasses import replace

import numpy as np
import pytest

from simshuffle.extensions.doctor.replay import LoopTimes, replay_loop, replay_loops

exactly = pytest.approx


def way(load, step, workers, prefetch=2, epochs=1, begin=0.0, **others) -> LoopTimes:
    """Of one rank; batches, and s for them or for each."""
    loads, steps = np.broadcast_arrays(np.asarray(load, float), np.asarray(step, float))
    if not loads.ndim:
        loads, steps = np.full(64, load), np.full(64, step)
    loads, steps = (np.tile(of, epochs)[:, None] for of in (loads, steps))
    first = tuple(np.linspace(0, len(loads), epochs + 1).astype(int).tolist())
    begins = np.full((epochs, max(workers, 1), 1), begin)
    return LoopTimes(loads, steps, begins, first, workers, prefetch, **others)


def total(of: LoopTimes) -> float:
    return replay_loop(of)[:, 0].sum()


@pytest.mark.parametrize(("workers", "batch"), [(1, 6.0), (2, 3.0), (3, 2.0), (8, 1.0)])
def test_a_batch_takes_the_longer_of_a_step_and_its_share_of_the_workers(workers, batch):
    # after the first, which takes 6 s + its step of 1 s
    found = replay_loop(way(6.0, 1.0, workers))[:, 0]
    assert found[0] == 7.0
    turns = found[1 : 1 + 6 * workers]
    assert turns.mean() == exactly(batch)


def test_without_workers_loads_and_steps_add_up():
    assert replay_loop(way(3.0, 2.0, 0))[:, 0].tolist() == 64 * [5.0]


def test_workers_that_are_there_late_delay_each_epoch_once():
    # a load of 1 s is hidden behind a step of 1 s, but for the first of an epoch
    assert total(way(1.0, 1.0, 2, epochs=3)) == 3 * (64 + 1)
    assert total(way(1.0, 1.0, 2, epochs=3, begin=5.0)) == 3 * (64 + 1 + 5)


def one_slow() -> np.ndarray:
    """32 batches of 2 s, the ninth of 22 s."""
    return np.where(np.arange(32) == 8, 22.0, 2.0)


def test_a_slow_batch_holds_up_a_loader_that_hands_out_in_order():
    """Two workers, 2 s a batch, 1 s a step: just in time, from 2 s on. Batch 8 is asked for when
    batch 4 is taken, at 6 s; its worker is free at 8 s, after batch 6 of 6 to 8 s: it is there at
    8 + 22 = 30 s, where 10 s were needed. Meanwhile the other makes 9 and 11 and stops: four are
    asked for. Then batches 9 to 11 come one a second (10 is made by the slow one's worker in 30 to
    32 s, and taken at 32 s), so nothing of the 20 s is made up for."""
    without, found = total(way(2.0, 1.0, 2)), total(way(one_slow(), 1.0, 2))
    assert total(way(np.full(32, 2.0), 1.0, 2)) == 2 + 32
    assert without == 2 + 64
    assert found == 2 + 32 + 20


def test_a_slow_batch_is_overtaken_where_batches_come_as_they_are_made():
    """The other worker goes on alone, a batch each 2 s in place of each 1 s, for the 20 s: ten
    batches are late by a second each, not one by 20. What was asked of the slow one stays behind
    it: one batch, which comes at 32 s."""
    found = total(way(one_slow(), 1.0, 2, in_order=False))
    assert 2 + 32 + 8 <= found <= 2 + 32 + 12


def test_order_does_not_matter_where_all_are_alike():
    alike = way(6.0, 1.0, 4)
    assert replay_loop(replace(alike, in_order=False)) == exactly(replay_loop(alike))


def test_ranks_meet_at_the_end_of_a_step():
    # the second rank has one step of 5 s, the first another one: both lose 4 s twice
    steps = np.ones((16, 2))
    steps[3, 1] = steps[9, 0] = 5.0
    of = way(np.full(16, 0.5), 1.0, 2)
    both = replace(of, load_s=np.full((16, 2), 0.5), step_s=steps)
    assert replay_loop(both).sum(axis=0) == exactly([0.5 + 16 + 8, 0.5 + 16 + 8])
    assert replay_loop(replace(both, ranks_meet=False)).sum(axis=0) == exactly(
        [0.5 + 16 + 4, 0.5 + 16 + 4]
    )
    as_come = replace(both, in_order=False)
    assert replay_loop(as_come) == exactly(replay_loop(both))


def test_ways_together_are_as_each_alone():
    ways = [way(load, 1.0, 3, epochs=2, begin=1.0) for load in (1.0, 4.0, 9.0)]
    for of in (ways, [replace(each, in_order=False) for each in ways]):
        assert replay_loops(of) == exactly(np.stack([replay_loop(each) for each in of], axis=1))


def test_more_workers_share_the_same_loads():
    few = way(6.0, 1.0, 2, epochs=2, begin=0.5)
    assert total(few.change_workers(4)) == total(way(6.0, 1.0, 4, epochs=2, begin=0.5))
    assert total(way(6.0, 1.0, 0).change_workers(2)) == total(way(6.0, 1.0, 2))


def test_what_is_sent_comes_later_and_does_not_hold_up_its_worker():
    # a worker makes a batch a second and sends each in 1 s beside the next: 2 s late at first, then
    # just in time; where sending takes 3 s it is what binds
    at_once = way(1.0, 1.0, 1)
    assert total(replace(at_once, send_s=np.full((64, 1), 1.0))) == 2 + 64
    assert total(replace(at_once, send_s=np.full((64, 1), 3.0))) == 1 + 64 * 3 + 1


def test_a_batch_is_handed_over_before_a_step_and_not_beside_it():
    assert total(replace(way(0.5, 1.0, 2), handover_s=np.full((64, 1), 0.25))) == 0.5 + 64 * 1.25


def test_an_idle_worker_hands_over_sooner_than_a_busy_one():
    """A worker that takes 2 s a batch is busy until the last, one that takes 0.1 s never is when a
    step of 1 s is over. All were busy when they were recorded, and handed over in 0.5 s, all for
    that."""
    busy = np.ones((64, 1), dtype=bool)
    recorded = {"handover_s": np.full((64, 1), 0.5), "worker_is_busy": busy, "busy_extra_s": 0.5}
    assert total(replace(way(2.0, 1.0, 1), **recorded)) == exactly(64 * 2 + 1)
    # but for the first batch: its worker goes on with the next at once
    assert total(replace(way(0.1, 1.0, 1), **recorded)) == exactly(0.1 + 0.5 + 64)
