"""Who makes a step slow, by hand. Four ranks in two pipelines of two stages: ranks 0 and 1 hold
stage 0, 2 and 3 stage 1. Forward takes 1 s, backward 2 s, a transfer 0.1 s, the reduce-scatter
0.5 s; rank 3 takes twice as long. Second step: a gap of 0.3 s before the last reduce-scatter."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simshuffle.blame.replay import blame
from simshuffle.blame.trace import read_trace, trace_of

TRACE = Path(__file__).parents[1] / "data" / "blame" / "slow-rank.csv"


def saved(found, by):
    return {row.name: row.saved_s for row in found.rows(by)}


def lone(*rows):
    """What is found of operations (rank, stage, kind, start, end) of one step."""
    names = ("rank", "stage", "kind", "start", "end")
    columns = {name: np.array(of) for name, of in zip(names, zip(*rows, strict=True), strict=True)}
    durations = columns["end"] - columns["start"]
    columns |= {"step": np.zeros(len(rows)), "duration": durations}
    return blame(trace_of(columns, "trace"), "trace")


def test_a_step_lasts_as_its_slow_pipeline_and_the_gap_is_measured_only():
    """1 + 0.1 + 2 + 4 + 0.1 + 2 and the reduce-scatter 0.5: 9.7 s. Typical are forward 5/4 and
    backward 10/4 s: 1.25 + 0.1 + 1.25 + 2.5 + 0.1 + 2.5 + 0.5 = 8.2 s."""
    found = blame(read_trace(TRACE), TRACE.name)
    assert (found.ranks, found.steps) == (4, 2)
    assert found.measured_s == pytest.approx((9.7 + 10.0) / 2)
    assert found.step_s == pytest.approx(9.7)
    assert found.ideal_s == pytest.approx(8.2)
    assert found.slow_down == pytest.approx(9.7 / 8.2)


def test_what_goes_with_one_rank_stage_or_kind():
    """Rank 3 typical: 1 + 0.1 + 1.25 + 2.5 + 0.1 + 2 + 0.5 = 7.45 s. Ranks 0 and 2 are not on the
    longest way; rank 1 is, and faster than typical by 0.75 s. Of the kinds: forward gains 0.75 s
    on rank 3 and loses 0.25 s on rank 1, backward 1.5 and 0.5 s."""
    found = blame(read_trace(TRACE), TRACE.name)
    assert saved(found, "rank") == pytest.approx({"3": 2.25, "0": 0, "2": 0, "1": -0.75}, abs=1e-9)
    assert saved(found, "stage") == pytest.approx({"1": 2.25, "0": -0.75}, abs=1e-9)
    kinds = saved(found, "kind")
    assert kinds["backward-compute"] == pytest.approx(1.0)
    assert kinds["forward-compute"] == pytest.approx(0.5)
    assert kinds["grads-reduce-scatter"] == pytest.approx(0, abs=1e-9)
    assert kinds["forward send and receive"] == pytest.approx(0, abs=1e-9)
    assert found.rows("rank")[0].name == "3"
    assert "if rank 3 alone were not, 2.25 s less" in found.verdict()


def test_equal_ranks_are_not_slow():
    table = pd.read_csv(TRACE)
    fast = table[table["rank"].isin([0, 2])].copy()
    z = fast["kind"] == "grads-reduce-scatter"
    fast.loc[z, "duration"] = 0.5
    found = blame(trace_of({name: fast[name].to_numpy() for name in fast}, "fast"), "fast")
    # forward 1 and 1, backward 2 and 2: 6.2 s and the reduce-scatter
    assert found.step_s == found.ideal_s == pytest.approx(6.7)
    assert found.verdict().startswith("Nobody is slow")


def test_two_ranks_wait_for_each_other_in_a_collective_and_not_in_a_tensor_group():
    """Rank 1 computes 3 s, rank 0 1 s; the norm of the layers takes 0.2 s of each alone, then
    both clip (0.1 s), then rank 0 optimises for 1 s, rank 1 for 0.5 s: 3 + 0.2 + 0.1 + 1."""
    found = lone(
        (0, 0, "backward-compute", 0, 1),
        (0, 0, "layernorm-grads-all-reduce", 1, 1.2),
        (0, 0, "optimizer-clip-main-grad", 1.2, 3.3),
        (0, 0, "optimizer", 3.3, 4.3),
        (1, 0, "backward-compute", 0, 3),
        (1, 0, "layernorm-grads-all-reduce", 3, 3.2),
        (1, 0, "optimizer-clip-main-grad", 3.2, 3.3),
        (1, 0, "optimizer", 3.3, 3.8),
    )
    assert found.step_s == pytest.approx(4.3)
    # means: backward 2, optimizer 0.75; medians 0.2, 0.1
    assert found.ideal_s == pytest.approx(2 + 0.2 + 0.1 + 0.75)
    assert saved(found, "rank")["1"] == pytest.approx(1.0)


def test_the_ends_of_a_pipeline_share_an_embedding_and_the_middle_does_not_wait():
    """Stages compute 1, 2 and 3 s at once; the ends meet at 3 s for 0.5 s, then all clip."""
    found = lone(
        (0, 0, "backward-compute", 0, 1),
        (0, 0, "embedding-grads-all-reduce", 1, 3.5),
        (0, 0, "optimizer-clip-main-grad", 3.5, 3.6),
        (1, 1, "backward-compute", 0, 2),
        (1, 1, "optimizer-clip-main-grad", 2, 3.6),
        (2, 2, "backward-compute", 0, 3),
        (2, 2, "embedding-grads-all-reduce", 3, 3.5),
        (2, 2, "optimizer-clip-main-grad", 3.5, 3.6),
    )
    assert found.step_s == pytest.approx(3.6)
    assert found.ideal_s == pytest.approx(2.6)
    assert saved(found, "stage") == pytest.approx({"2": 1.0, "0": 0, "1": 0}, abs=1e-9)


def test_a_gather_holds_up_the_computation_and_an_overlapped_scatter_does_not():
    """Gather 1 s, forward 2 s, backward 3 and 3 s; the first scatter of 2 s runs beside the second
    backward, the last one of 1 s after it: 1 + 2 + 3 + 3 + 1 s, the scatter at 8 s not awaited."""
    found = lone(
        (0, 0, "params-all-gather", 0, 1),
        (0, 0, "forward-compute", 1, 3),
        (0, 0, "backward-compute", 3, 6),
        (0, 0, "grads-reduce-scatter", 6, 8),
        (0, 0, "backward-compute", 6, 9),
        (0, 0, "grads-reduce-scatter", 9, 10),
        (0, 0, "optimizer", 10, 10.5),
    )
    assert found.step_s == pytest.approx(10.5)
    # the scatters alike, 1.5 s each: 0.5 s longer at the end
    assert saved(found, "kind")["grads-reduce-scatter"] == pytest.approx(-0.5)


def test_typical_is_the_mean_of_computations_and_the_median_of_transfers():
    """Three steps of one rank: 1, 1 and 4 s of forward, 2, 2 and 8 s of a reduce-scatter."""
    rows = [
        (step, kind, start, took)
        for step, (first, second) in enumerate(((1, 2), (1, 2), (4, 8)))
        for kind, start, took in (
            ("forward-compute", 0, first),
            ("grads-reduce-scatter", first, second),
        )
    ]
    step, kind, start, duration = map(np.array, zip(*rows, strict=True))
    none = np.zeros(len(rows))
    columns = {"rank": none, "stage": none, "step": step, "kind": kind, "start": start}
    found = blame(trace_of(columns | {"duration": duration}, "trace"), "trace")
    assert found.step_s == pytest.approx((3 + 3 + 12) / 3)
    assert found.ideal_s == pytest.approx(2 + 2)


def test_a_receive_is_posted_after_the_computation_before():
    """Two micro-batches: stage 0 computes 1 s each, stage 1 3 s each. The second transfer of 0.5 s
    begins when stage 1 has computed the first (at 4.5 s) and ends at 5 s: 5 + 3 s."""
    found = lone(
        (0, 0, "forward-compute", 0, 1),
        (0, 0, "forward-send", 1, 1.5),
        (0, 0, "forward-compute", 1.5, 2.5),
        (0, 0, "forward-send", 2.5, 5),
        (1, 1, "forward-recv", 0, 1.5),
        (1, 1, "forward-compute", 1.5, 4.5),
        (1, 1, "forward-recv", 4.5, 5),
        (1, 1, "forward-compute", 5, 8),
    )
    assert found.step_s == pytest.approx(8.0)
