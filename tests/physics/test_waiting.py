"""What ranks wait for, on timelines written by hand. The law: what a rank waits is what the last
one to arrive spent more than it, label by label."""

import pandas as pd
import pytest

from simshuffle.results.report import LABELS, breakdown
from simshuffle.results.timeline import PHASE_COLUMNS, PHASES, Timeline
from simshuffle.results.waiting import waiting

REDUCED = [("allreduce", 2.0), ("update", 1.0)]


def timeline(*ranks, run="r"):
    """A table of phases: of each rank its iterations, of each iteration phases with their seconds;
    what follows the last iteration is the last entry."""
    rows = []
    for rank, iterations in enumerate(ranks):
        now = 0.0
        for number, phases in enumerate(iterations, start=1):
            for phase, seconds in phases:
                iteration = 0 if number == len(iterations) or phase == "importance" else number
                rows.append((run, 1, iteration, rank, phase, now, now + seconds, 0.0))
                now += seconds
    table = pd.DataFrame(rows, columns=list(PHASE_COLUMNS))
    table["phase"] = pd.Categorical(table["phase"], PHASES)
    return table.assign(run=pd.Categorical(table["run"]))


def causes(phases):
    table = waiting(phases, LABELS)
    return dict(
        zip(zip(table["label"], table["cause"], strict=True), table["seconds"], strict=True)
    )


def test_a_slow_read_is_what_the_others_wait_for():
    """Rank 0 reads for 10 s, rank 1 for 2 s; both compute for 6 s. Rank 1 waits 8 s: 4 s on
    average."""
    phases = timeline(
        [[("io", 10.0), ("forward", 2.0), ("backward", 4.0), *REDUCED], []],
        [[("io", 2.0), ("forward", 2.0), ("backward", 4.0), ("wait_allreduce", 8.0), *REDUCED], []],
    )
    assert causes(phases) == {("GE+WU", "I/O"): pytest.approx(4.0)}


def test_where_the_last_rank_was_faster_is_no_cause():
    """The last rank reads 8 s longer and computes 3 s less: the 5 s are for its read."""
    phases = timeline(
        [[("io", 10.0), ("forward", 4.0), *REDUCED], []],
        [[("io", 2.0), ("forward", 7.0), ("wait_allreduce", 5.0), *REDUCED], []],
    )
    assert causes(phases) == {("GE+WU", "I/O"): pytest.approx(2.5)}


def test_two_causes_share_the_waiting_by_what_the_last_rank_spent_more():
    """6 s more of I/O and 3 s more of FW+BW: 9 s of waiting of one of two ranks."""
    phases = timeline(
        [[("io", 10.0), ("backward", 8.0), *REDUCED], []],
        [[("io", 4.0), ("backward", 5.0), ("wait_allreduce", 9.0), *REDUCED], []],
    )
    expected = {("GE+WU", "I/O"): 3.0, ("GE+WU", "FW+BW"): 1.5}
    assert causes(phases) == pytest.approx(expected)


def test_exchange_without_barriers_is_waited_for_at_the_next_allreduce():
    """After the first update rank 0 works 3 s for the exchange and rank 1 not at all; nothing holds
    them together before the second allreduce."""
    work = [("forward", 4.0)]
    phases = timeline(
        [[*work, *REDUCED, ("exchange", 3.0)], [*work, *REDUCED], []],
        [[*work, *REDUCED], [*work, ("wait_allreduce", 3.0), *REDUCED], []],
    )
    assert causes(phases) == {("GE+WU", "EXCHANGE"): pytest.approx(1.5)}


def test_a_barrier_after_the_allreduce_is_the_exchange():
    work = [("forward", 4.0)]
    phases = timeline(
        [[*work, *REDUCED, ("exchange", 3.0)], [*work, *REDUCED], []],
        [[*work, *REDUCED, ("exchange", 1.0), ("wait_exchange", 2.0)], [*work, *REDUCED], []],
    )
    assert causes(phases) == {("EXCHANGE", "EXCHANGE"): pytest.approx(1.0)}


def test_a_barrier_of_the_exchange_may_be_late_by_a_read():
    """Booked as EXCHANGE, where the authors' timers see it, and caused by I/O."""
    store, work = ("exchange", 0.5), [("forward", 4.0)]
    phases = timeline(
        [[*work, *REDUCED], [("io", 5.0), *work, store, *REDUCED], []],
        [[*work, *REDUCED], [*work, store, ("wait_exchange", 5.0), *REDUCED], []],
    )
    assert causes(phases) == {("EXCHANGE", "I/O"): pytest.approx(2.5)}


def test_an_inference_pass_is_waited_for_at_the_first_allreduce():
    work = [("forward", 4.0)]
    phases = timeline(
        [[("importance", 3.0), *work, *REDUCED], [*work, *REDUCED], []],
        [[("importance", 1.0), *work, ("wait_allreduce", 2.0), *REDUCED], [*work, *REDUCED], []],
    )
    assert causes(phases) == {("GE+WU", "IMPT"): pytest.approx(1.0)}


def test_what_follows_the_last_iteration_is_the_exchange():
    work = [("forward", 4.0)]
    phases = timeline(
        [[*work, *REDUCED], [("exchange", 2.0)]],
        [[*work, *REDUCED], [("exchange", 0.5), ("wait_allreduce", 1.5)]],
    )
    assert causes(phases) == {("GE+WU", "EXCHANGE"): pytest.approx(0.75)}


def test_own_work_and_waiting_add_up_to_the_epoch():
    phases = timeline(
        [[("io", 10.0), ("backward", 8.0), *REDUCED], []],
        [[("io", 4.0), ("backward", 5.0), ("wait_allreduce", 9.0), *REDUCED], []],
    )
    sources = pd.DataFrame({"run": ["r"], "epoch": [1], "steady_last": [0]})
    table = breakdown(Timeline(phases, phases[:0], sources))
    assert list(table.columns) == ["run", "epoch", "label", "cause", "seconds"]
    rows = list(zip(table["label"], table["cause"], table["seconds"], strict=True))
    assert rows == [
        ("I/O", "", 7.0),
        ("FW+BW", "", 6.5),
        ("GE+WU", "", 3.0),
        ("GE+WU", "I/O", pytest.approx(3.0)),
        ("GE+WU", "FW+BW", pytest.approx(1.5)),
        ("EXCHANGE", "", 0.0),
    ]
    assert table["seconds"].sum() == pytest.approx(21.0)
