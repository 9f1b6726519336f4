"""What ranks wait for, on timelines written by hand. The law: what a rank waits is what the last
one to arrive spent more than it, label by label."""

import numpy as np
import pandas as pd
import pytest

from simshuffle.job.sim.cell import RunCell
from simshuffle.report.report import LABELS, breakdown
from simshuffle.report.timeline import PHASE_COLUMNS, PHASES, Timeline
from simshuffle.report.waiting import hosts_waited_for, waiting_by_cause, waits_by_host
from tests.small import small

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
    table = waiting_by_cause(phases, LABELS)
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


def test_ranks_that_do_nothing_but_reduce_wait_for_nobody():
    assert causes(timeline(*[[[("allreduce", 1.0)]] * 3 + [[]]] * 2)) == {}


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


# ------------------------------------------------------------------------------ hosts waited for


def steps_of(*seconds):
    """The phases of ranks that compute for (steps, ranks) s, wait for the last, and reduce."""
    ranks = [[] for _ in seconds[0]]
    for step in seconds:
        for rank, own in enumerate(step):
            wait = max(step) - own
            idle = [("wait_allreduce", wait)] * (wait > 0)
            ranks[rank].append([("forward", own), *idle, *REDUCED])
    return timeline(*([*own, []] for own in ranks))


def test_what_all_wait_is_booked_to_the_host_of_the_last_rank():
    """Four ranks on two hosts compute for 2 s, but rank 3 for 4 s: in each of 20 steps three wait
    for 2 s, 1.5 s on average. Weighed three times a step, it is three times as long."""
    phases, hosts = steps_of(*20 * [(2.0, 2.0, 2.0, 4.0)]), np.array([0, 0, 1, 1])
    seconds, often = waits_by_host(phases, LABELS, hosts)
    computing = list(LABELS).index("FW+BW")
    assert seconds[1, computing] == pytest.approx(20 * 1.5)
    assert seconds.sum() == pytest.approx(20 * 1.5)
    assert often.tolist() == [False, True]
    weighed, _ = waits_by_host(phases, LABELS, hosts, np.full(len(phases), 3.0))
    assert weighed.sum() == pytest.approx(60 * 1.5)


def test_hosts_that_are_last_in_turn_are_not_last_more_often_than_by_chance():
    """Each of four hosts is last in every fourth step."""
    phases = steps_of(*5 * [tuple(2.0 + (rank == last) for rank in range(4)) for last in range(4)])
    seconds, often = waits_by_host(phases, LABELS, np.arange(4))
    assert seconds.sum(axis=1) == pytest.approx(np.full(4, 5 * 0.75))
    assert not often.any()


def test_a_host_is_named_that_costs_a_twentieth_and_is_sure_or_faulty():
    """Of an epoch of 100 s, host b costs 10 s; the median of the others is 1 s."""
    seconds, names = np.array([[1.0, 0.0], [1.0, 9.0], [1.0, 0.0]]), ["a", "b", "c"]
    sure = np.array([False, True, False])
    found = [{"host": "b", "label": 1, "seconds": 9.0}]
    assert hosts_waited_for(seconds, sure, 100.0, names, (), unshared_labels=[1]) == found
    assert hosts_waited_for(seconds, ~sure, 100.0, names, (), unshared_labels=[1]) == []
    assert hosts_waited_for(seconds, ~sure, 100.0, names, {"b"}, unshared_labels=[1]) == found
    assert hosts_waited_for(seconds, sure, 200.0, names, (), unshared_labels=[1]) == []
    assert (
        hosts_waited_for(seconds, sure, 100.0, names, (), unshared_labels=[0]) == []
    )  # it is shared


def test_a_run_with_a_slow_host_says_for_whom_its_ranks_wait():
    """The GPUs of one of 8 hosts compute at half their rate: the other 7 ranks wait as long as they
    compute, 27.25 ms (9.083 + 18.17 ms), in each of 10 iterations: 7/8 of it on average."""
    slow = {"what": "h0003.gpus", "at": "0 s", "rate": 0.5}
    facts = RunCell(small(faults=[slow]).to_dict(), "").run(lambda share: None).values["facts"]
    (row,) = facts["waited_for"]
    assert (row["host"], row["label"]) == ("h0003", "FW+BW")
    assert row["seconds"] == pytest.approx(10 * 7 / 8 * 27.25e-3, rel=0.01)
    assert (
        "waited_for" not in RunCell(small().to_dict(), "").run(lambda share: None).values["facts"]
    )
