"""Who makes a step slow, by hand. Four ranks in two pipelines of two stages: ranks 0 and 1 hold
stage 0, 2 and 3 stage 1. Forward takes 1 s, backward 2 s, a transfer 0.1 s, the reduce-scatter
0.5 s; rank 3 takes twice as long. Second step: a gap of 0.3 s before the last reduce-scatter."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simshuffle.extensions.doctor.blame.replay import blame
from simshuffle.extensions.doctor.blame.trace import read_trace, trace_of

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
    assert "if only rank 3 were not slow, 2.25 s less" in found.verdict().why


def test_equal_ranks_are_not_slow():
    table = pd.read_csv(TRACE)
    fast = table[table["rank"].isin([0, 2])].copy()
    z = fast["kind"] == "grads-reduce-scatter"
    fast.loc[z, "duration"] = 0.5
    found = blame(trace_of({name: fast[name].to_numpy() for name in fast}, "fast"), "fast")
    # forward 1 and 1, backward 2 and 2: 6.2 s and the reduce-scatter
    assert found.step_s == found.ideal_s == pytest.approx(6.7)
    assert found.verdict().answer[0].startswith("Nobody is slow")


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


def data_parallel(compute, collective, *, slow=1.9, since=0.0):
    """Eight ranks, four steps: each computes for 1 s, rank 5 for ``slow``, then all meet; the
    collective ends 0.3 s after rank 5 came. Times from ``since``."""
    rows = []
    for step in range(4):
        for rank in range(8):
            own, begin = slow if rank == 5 else 1.0, since + 10.0 * step
            rows.append((rank, 0, step, compute, begin, own))
            rows.append((rank, 0, step, collective, begin + own, slow - own + 0.3))
    names = ("rank", "stage", "step", "kind", "start", "duration")
    return {name: np.array(of) for name, of in zip(names, zip(*rows, strict=True), strict=True)}


NAMES = [
    ("forward", "allreduce"),
    ("fwd", "AllReduce"),
    ("forward_microstep", "backward_allreduce_microstep"),
    ("bwd_inner", "reduce_scatter_tensor"),
    ("aten::addmm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
    ("DistributedDataParallel.forward", "c10d::allreduce_"),
    ("AddmmBackward0", "nccl:_reduce_scatter_base"),
    ("sm80_xmma_gemm_f16f16", "ncclKernel_AllGather_RING_LL_Sum_int8_t"),
    ("Optimizer.step#Adam.step", "gloo:all_reduce"),
    ("batch-generator", "all-grads-sync"),
    ("data_loading", "barrier"),
    ("layer-7-compute", "all_to_all_single"),
    ("compute", "wait_allreduce"),
]


@pytest.mark.parametrize(("compute", "collective"), NAMES)
def test_whatever_frameworks_call_it_the_slow_rank_is_named(compute, collective):
    """Rank 5 computes 1.9 s, seven 1 s: typical is 8.9/8 = 1.1125 s, so a step of 2.2 s would last
    1.1125 + 0.3; without rank 5 alone it is the same."""
    found = blame(trace_of(data_parallel(compute, collective), "trace"), "trace")
    assert found.step_s == pytest.approx(2.2)
    assert found.ideal_s == pytest.approx(1.4125)
    assert found.rows("rank")[0].name == "5"
    assert "if only rank 5 were not slow, 0.787 s less" in found.verdict().why


def test_rounding_of_times_since_1970_is_no_difference():
    """At 1.79e9 s float64 has steps of 2.4e-7 s: equal ranks differ by that, and are equal."""
    columns = data_parallel("forward", "allreduce", slow=1.0, since=1.79e9)
    found = blame(trace_of(columns, "trace"), "trace")
    (answer,) = found.verdict().answer
    assert answer == "Nobody is slow: a step would take 0 s less if all were alike."
    assert {row.saved_s for row in found.saved} == {0.0}


def test_a_computation_that_ranks_end_together_is_a_meeting():
    """Timers around forward and backward of DDP: who waits does so within backward, which all end
    together. Rank 5 is late to it by 0.9 s, and the table says that it cannot say more."""
    found = blame(trace_of(data_parallel("forward", "backward"), "trace"), "trace")
    assert found.rows("rank")[0].name == "5"
    assert found.rows("rank")[0].saved_s == pytest.approx(0.7875)
    assert any("Ranks end backward-compute together" in note for note in found.notes)


def deepspeed(*kinds):
    """Three steps of four ranks, rank 2 computes 1.9 times as long: forward 1 s, backward 2 s, the
    allreduce ends 0.5 s after rank 2 came; "bwd" holds both of its parts."""
    rows = []
    for step in range(3):
        for rank in range(4):
            ratio, begin = 1.9 if rank == 2 else 1.0, 20.0 * step
            back, met = begin + ratio, begin + 3 * 1.9 + 0.5
            rows.append((rank, 0, step, "fwd", begin, ratio))
            rows.append((rank, 0, step, "bwd", back, met - back))
            rows.append((rank, 0, step, "bwd_inner", back, 2 * ratio))
            rows.append((rank, 0, step, "bwd_allreduce", back + 2 * ratio, met - back - 2 * ratio))
            rows.append((rank, 0, step, "step", met, 0.1))
    names = ("rank", "stage", "step", "kind", "start", "duration")
    chosen = zip(*(row for row in rows if row[3] in kinds), strict=True)
    columns = {name: np.array(of) for name, of in zip(names, chosen, strict=True)}
    return blame(trace_of(columns, "trace"), "trace")


def test_a_timer_that_holds_others_is_left_out_by_name():
    """A step is 5.7 + 0.5 + 0.1 s. Typical: forward 1.225, backward 2.45 s: 4.275 s."""
    found = deepspeed("fwd", "bwd", "bwd_inner", "bwd_allreduce", "step")
    assert found.step_s == pytest.approx(6.3)
    assert found.ideal_s == pytest.approx(1.225 + 2.45 + 0.5 + 0.1)
    assert found.rows("rank")[0].name == "2"
    text = "Left out: backward-compute (consists of bwd-allreduce, bwd-inner)."
    assert text in found.notes


def test_an_allreduce_inside_a_backward_that_ranks_end_together_counts_once():
    """Within bwd nothing shows, so it takes 5.7 + 0.5 - 1.9 = 4.3 s from when rank 2 comes."""
    found = deepspeed("fwd", "bwd", "bwd_allreduce", "step")
    assert found.step_s == pytest.approx(6.3)
    assert found.ideal_s == pytest.approx(1.225 + 4.3 + 0.1)
    assert found.rows("rank")[0].name == "2"


def test_a_collective_for_which_every_rank_is_idle_holds_up_the_next_pass():
    """Rank 2 is slow forward (1.9 s), rank 1 backward (2.5 s), each followed by an allreduce of
    0.1 s that all await: 1.9 + 0.1 + 2.5 + 0.1 s."""
    rows = []
    for rank in range(4):
        forward, backward = (1.9 if rank == 2 else 1.0), (2.5 if rank == 1 else 1.0)
        rows.append((rank, 0, "forward", 0.0, forward))
        rows.append((rank, 0, "allreduce", forward, 2.0))
        rows.append((rank, 0, "backward", 2.0, 2.0 + backward))
        rows.append((rank, 0, "allreduce", 2.0 + backward, 4.6))
    found = lone(*rows)
    assert found.step_s == pytest.approx(4.6)
