"""Allreduces beside the backward pass, worked out by hand: two ranks on two hosts of one switch.

Laws and sources: docs/model-allreduce.md, Allreduce beside the backward pass.
"""

from typing import Any

import numpy as np
import pytest

from simshuffle.fabric.allreduce import Ddp, Horovod
from simshuffle.job.plan.bounds import Compute, bounds
from simshuffle.job.sim.simulate import simulate
from simshuffle.report import report
from simshuffle.report.timeline import EXCLUSIVE
from tests.small import seconds, small

FORWARD, BACKWARD = 10e-3, 20e-3  # s of a batch of 10
LAYERS = {"parameters": [40_000_000, 30_000_000, 20_000_000, 10_000_000], "backward": [8, 6, 4, 2]}
READY = np.array([2.0, 6.0, 12.0, 20.0]) * 1e-3  # s into the backward pass, last layer first
LATENCY = 2 * 9.6e-6  # two steps of a ring of two hosts


def overlapped(overlap: Any, bandwidth: str = "10 GB/s", **values: Any) -> Any:
    """One iteration of two ranks whose gradient of 100 MB has four layers."""
    return small(
        **{"world_size": 2, "workload__dataset__num_samples": 20} | values,
        workload__model={
            "name": "four layers",
            "gradient_size": "100 MB",
            "layers": LAYERS,
            "accelerators": {"v100-sxm2-16gb": {"forward": "1 ms", "backward": "2 ms"}},
        },
        workload__allreduce__inter_host_bus_bandwidth=bandwidth,
        workload__allreduce__overlap=overlap,
    )


def times(scenario: Any) -> dict[str, float]:
    """Seconds of every phase of rank 0."""
    timeline = simulate(scenario)
    return {
        phase: seconds(timeline, phase).get(0, 0.0)
        for phase in ("forward", "backward", "slowdown", "allreduce", "allreduce_hidden")
    }


def reduced(nbytes: float, bandwidth: float = 10e9) -> float:
    """s of a ring of two hosts, where each sends n bytes."""
    return LATENCY + nbytes / bandwidth


def test_ddp_posts_a_bucket_when_its_last_layer_is_done():
    """Buckets of at least 25 MB: 10 MB are more than the first one's 5 MB, 20 and 30 MB fill the
    second, 40 MB the third. Each takes n / 10 GB/s and 19.2 us. The first is done before the second
    is ready, at 12 ms; that one ends at 17.02 ms, before the third, at 20 ms."""
    overlap = {"kind": "ddp", "bucket": "25 MB", "first_bucket": "5 MB"}
    found = times(overlapped({**overlap, "slowdown": 0, "hooks": "0 s"}))
    assert found["backward"] == pytest.approx(BACKWARD, rel=1e-9)
    assert found["allreduce_hidden"] == pytest.approx(reduced(10e6) + reduced(50e6), rel=1e-9)
    assert found["allreduce"] == pytest.approx(reduced(40e6), rel=1e-9)
    assert found["slowdown"] == 0


def test_buckets_go_one_after_the_other():
    """At 2 GB/s the first bucket, ready at 2 ms, ends at 7.02, the second, ready at 12, at 37.04;
    so the third begins then and not at 20 ms: 20 + 17.04 + 20.02 ms in all."""
    overlap = {"kind": "ddp", "bucket": "25 MB", "first_bucket": "5 MB"}
    found = times(overlapped({**overlap, "slowdown": 0, "hooks": "0 s"}, "2 GB/s"))
    end = READY[2] + reduced(50e6, 2e9) + reduced(40e6, 2e9)
    assert found["allreduce"] == pytest.approx(end - BACKWARD, rel=1e-9)
    hidden = reduced(10e6, 2e9) + BACKWARD - READY[2]
    assert found["allreduce_hidden"] == pytest.approx(hidden, rel=1e-9)


def test_buckets_that_wait_keep_their_order():
    """One for each layer, at 1 GB/s: the third and the fourth are both ready when the second ends,
    at 32.04 ms. The third goes first, so all are summed when the fourth has ended."""
    overlap = {"kind": "ddp", "bucket": "1 B", "first_bucket": "1 B"}
    found = times(overlapped({**overlap, "slowdown": 0, "hooks": "0 s"}, "1 GB/s"))
    end = READY[0] + sum(reduced(nbytes, 1e9) for nbytes in (10e6, 20e6, 30e6, 40e6))
    assert found["allreduce"] == pytest.approx(end - BACKWARD, rel=1e-9)


@pytest.mark.parametrize("slowdown", [0.2, 0.5])
def test_backward_is_slower_while_gradients_travel(slowdown):
    """With half of the speed: the first bucket travels from 2 ms on, for 1.0192 ms, in which half
    of that is computed; the second is ready later by 0.5096 ms and adds 2.5096 ms."""
    overlap = {"kind": "ddp", "bucket": "25 MB", "first_bucket": "5 MB"}
    found = times(overlapped({**overlap, "slowdown": slowdown, "hooks": "0 s"}))
    both = reduced(10e6) + reduced(50e6)
    assert found["backward"] == pytest.approx(BACKWARD, rel=1e-9)
    assert found["slowdown"] == pytest.approx(slowdown * both, rel=1e-9)
    assert found["allreduce_hidden"] == pytest.approx(both, rel=1e-9)
    assert found["allreduce"] == pytest.approx(reduced(40e6), rel=1e-9)


def test_hooks_lengthen_the_backward_pass():
    """By 4 of 20 ms; so all layers come a fifth later."""
    overlap = {"kind": "ddp", "bucket": "25 MB", "first_bucket": "5 MB"}
    found = times(overlapped({**overlap, "slowdown": 0, "hooks": "4 ms"}, "2 GB/s"))
    assert found["backward"] == pytest.approx(BACKWARD + 4e-3, rel=1e-9)
    end = READY[2] * 1.2 + reduced(50e6, 2e9) + reduced(40e6, 2e9)
    assert found["allreduce"] == pytest.approx(end - BACKWARD - 4e-3, rel=1e-9)


@pytest.mark.parametrize(
    ("cycle", "negotiation", "period", "agreeing"),
    [("12 ms", "0.4 ms", 12e-3, 1e-3), ("5 ms", "11.4 ms", 12e-3, 12e-3)],
)
def test_horovod_takes_what_is_ready_at_its_cycle(cycle, negotiation, period, agreeing):
    """Every 12 ms from the start of the run: the cycle, or the negotiation if that takes longer.
    What is read and the forward pass take `begin`. Each layer waits for the next cycle after it is
    ready, and until all ranks know."""
    rule = {"kind": "horovod", "cycle": cycle, "negotiation": negotiation, "fusion": "64 MB"}
    scenario = overlapped({**rule, "negotiation_per_rank": "0.3 ms", "slowdown": 0}, "2 GB/s")
    timeline = simulate(scenario)
    rows = timeline.phases
    begin = rows.loc[rows["phase"] == "backward", "start_s"].max()
    cycles: dict[float, float] = {}
    for nbytes, ready in zip([10e6, 20e6, 30e6, 40e6], begin + READY, strict=True):
        at = np.ceil(ready / period) * period
        cycles[at] = cycles.get(at, 0.0) + nbytes
    assert 1 < len(cycles) < 4  # some layers are fused
    assert max(cycles.values()) < 64e6
    end = 0.0
    for at, nbytes in cycles.items():
        end = max(end, at + agreeing) + reduced(nbytes, 2e9)
    found = rows.loc[rows["phase"] == "allreduce", "end_s"].max()
    assert found == pytest.approx(end, rel=1e-9)


def test_all_messages_of_a_cycle_are_waited_for():
    """At 1 s all layers are ready; 10, 20 and 30 MB fit into a message, and 40 MB are another."""
    rule = {"kind": "horovod", "cycle": "1 s", "negotiation": "0 s", "fusion": "64 MB"}
    scenario = overlapped({**rule, "negotiation_per_rank": "0 s", "slowdown": 0}, "2 GB/s")
    rows = simulate(scenario).phases
    found = rows.loc[rows["phase"] == "allreduce", "end_s"].max()
    assert found == pytest.approx(1.0 + reduced(60e6, 2e9) + reduced(40e6, 2e9), rel=1e-9)


def test_weights_are_updated_when_all_is_summed():
    """For 7 ms, after the last bucket."""
    key = "workload.model.accelerators.v100-sxm2-16gb.update"
    scenario = overlapped("ddp:slowdown=0,hooks=0 s").with_values({key: "7 ms"})
    found = simulate(scenario).phases
    updates = found[found["phase"] == "update"]
    assert (updates["end_s"] - updates["start_s"]).tolist() == pytest.approx([7e-3] * 2, rel=1e-9)
    assert updates["start_s"].min() == found.loc[found["phase"] == "allreduce", "end_s"].max()


def test_what_does_not_fit_goes_in_the_next_message():
    rule = Horovod.model_validate({"kind": "horovod", "fusion": "50 B"})
    assert rule.fuse([20.0, 30.0, 10.0, 60.0, 5.0]) == [50.0, 10.0, 60.0, 5.0]


def test_negotiation_grows_with_ranks():
    costs = {"negotiation": "1 ms", "negotiation_per_rank": "1 us"}
    rule = Horovod.model_validate({"kind": "horovod", **costs})
    assert rule.negotiation_seconds(1000) == pytest.approx(2e-3)


def test_buckets_of_ddp():
    """A bucket is full with the layer that fills it (torch's reducer.cpp,
    compute_bucket_assignment_by_size)."""
    rule = Ddp.model_validate({"kind": "ddp", "first_bucket": "2 B", "bucket": "10 B"})
    layers = np.array([[2.0, 0.1], [6.0, 0.2], [6.0, 0.3], [3.0, 0.9], [1.0, 1.0]])
    assert rule.parts(layers).tolist() == [[2.0, 0.1], [12.0, 0.3], [4.0, 1.0]]


@pytest.mark.parametrize("overlap", ["ddp", "horovod", "ddp:slowdown=0", "horovod:cycle=1 ms"])
@pytest.mark.parametrize(
    "exchange", ["local_shuffle", "partial_local_shuffle:exchange_fraction=0.3"]
)
def test_phases_follow_one_another_without_a_gap(overlap, exchange):
    """And the breakdown adds up to the epoch, with jitter and exchange."""
    scenario = small(
        workload__allreduce__overlap=overlap,
        workload__exchange=exchange,
        workload__jitter={"compute": 0.1, "read": 0.1},
    )
    timeline = simulate(scenario)
    rows = timeline.phases[timeline.phases["phase"].isin(EXCLUSIVE)]
    for _, of_rank in rows.groupby("rank"):
        ordered = of_rank.sort_values(["start_s", "end_s"])
        assert np.allclose(
            ordered["end_s"].to_numpy()[:-1], ordered["start_s"].to_numpy()[1:], rtol=0, atol=1e-12
        )
    table = report.breakdown(timeline)
    epoch = report.epochs(timeline)["epoch_s"][0]
    assert table["seconds"].sum() == pytest.approx(epoch, rel=1e-9)
    assert report.epochs(timeline)["allreduce_hidden_s"][0] > 0


@pytest.mark.parametrize("ranks", [2, 3])
def test_each_iteration_hides_the_same_however_many_ranks_there_are(ranks):
    """Two iterations; in each, buckets of 10 and 50 MB travel beside the backward pass, round a
    ring of M hosts in 2 (M - 1) steps."""
    overlap = {"kind": "ddp", "bucket": "25 MB", "first_bucket": "5 MB"}
    rows = simulate(
        overlapped(
            {**overlap, "slowdown": 0, "hooks": "0 s"},
            world_size=ranks,
            workload__dataset__num_samples=20 * ranks,
        )
    ).phases
    hidden = rows[rows["phase"] == "allreduce_hidden"]
    spans = hidden["end_s"] - hidden["start_s"]
    found = spans.groupby([hidden["iteration"], hidden["rank"]]).sum()
    steps = 2 * (ranks - 1)
    expected = steps * (2 * LATENCY / 2 + 60e6 / ranks / 10e9)
    assert found.to_dict() == {
        (iteration, rank): pytest.approx(expected, rel=1e-9)
        for iteration in (1, 2)
        for rank in range(ranks)
    }


def test_a_rank_that_stores_samples_until_all_is_summed_waits_for_no_other():
    """Its SSD has 2 %. The others wait as much longer as it stores and reads."""
    timeline = simulate(
        small(
            workload__exchange="partial_local_shuffle:exchange_fraction=0.3",
            workload__allreduce__overlap="ddp:slowdown=0,hooks=0 s",
            faults=[{"what": "h0003.ssd", "rate": 0.02, "at": "0 s"}],
        )
    )
    phases = ("wait_allreduce", "allreduce", "exchange", "io")
    found = {phase: seconds(timeline, phase) for phase in phases}
    assert 3 not in found["wait_allreduce"]
    assert min(found["wait_allreduce"].values()) > 0.1
    spent = [sum(by_rank.get(rank, 0.0) for by_rank in found.values()) for rank in range(8)]
    assert spent == pytest.approx([spent[3]] * 8, rel=1e-9)
    hidden = list(seconds(timeline, "allreduce_hidden").values())
    assert hidden == pytest.approx([hidden[0]] * 8, rel=1e-9)


def test_overlap_never_costs_more_than_it_hides_without_slowdown():
    """No later than all at the end, but for the latency of each bucket."""
    plain = simulate(small(workload__allreduce__overlap="none"))
    overlapping = simulate(small(workload__allreduce__overlap="ddp:slowdown=0,hooks=0 s"))
    assert report.epochs(overlapping)["epoch_s"][0] < report.epochs(plain)["epoch_s"][0]


def test_one_rank_sums_nothing():
    found = times(small(world_size=1, workload__allreduce__overlap="ddp:hooks=0 s"))
    assert found["allreduce"] == found["allreduce_hidden"] == found["slowdown"] == 0


def test_slowdown_is_caused_by_gradients():
    """It is booked where the backward pass is, and shown under what causes it."""
    table = report.breakdown(simulate(overlapped("ddp:slowdown=0.5")))
    row = table[(table["label"] == "FW+BW") & (table["cause"] == "GE+WU")]
    assert row["seconds"].tolist() == pytest.approx(
        report.epochs(simulate(overlapped("ddp:slowdown=0.5")))["slowdown_s"].tolist()
    )
    assert report.legend(table).endswith(
        "Slowed by GE+WU: the backward pass, while gradients travel."
    )


def test_jitter_makes_a_bucket_wait_for_the_slowest_rank():
    """A rank that computes nothing has its layers when the other has."""
    scenario = overlapped("ddp:slowdown=0,hooks=0 s", workload__jitter={"compute": 0.3, "read": 0})
    rows = simulate(scenario).phases
    done = rows[rows["phase"] == "backward"].groupby("rank")["end_s"].max()
    assert rows.loc[rows["phase"] == "allreduce", "start_s"].min() >= done.max() - 1e-12


# ----------------------------------------------------------------------- what `check` says of it


def found_again(overlap: Any, bandwidth: str = "10 GB/s") -> tuple[Compute, dict[str, float]]:
    """What the bounds say that the passes of an iteration are made of, and what is simulated."""
    scenario = overlapped(overlap, bandwidth)
    return bounds(scenario).passes, times(scenario)


def test_the_parts_of_compute_add_up_to_what_is_simulated():
    """30 ms are given, 4 ms are hooks. At 2 GB/s and half of the speed the first bucket travels for
    5.0192 ms from 2.4 ms of the 24 on, the second from 14.4 ms on: 9.6 ms of the pass are left, so
    it is slowed for the 19.2 ms that these take."""
    overlap = {"kind": "ddp", "bucket": "25 MB", "first_bucket": "5 MB"}
    parts, simulated = found_again({**overlap, "slowdown": 0.5, "hooks": "4 ms"}, "2 GB/s")
    assert parts.given == pytest.approx(FORWARD + BACKWARD, rel=1e-9)
    assert parts.hooks == pytest.approx(4e-3, rel=1e-9)
    assert parts.jitter == 0
    assert parts.slowed == pytest.approx(0.5 * (reduced(10e6, 2e9) + 19.2e-3), rel=1e-9)
    passes = simulated["forward"] + simulated["backward"]
    assert passes == pytest.approx(parts.given + parts.hooks, rel=1e-9)
    assert simulated["slowdown"] == pytest.approx(parts.slowed, rel=1e-9)


@pytest.mark.parametrize("bandwidth", ["1 GB/s", "10 GB/s"])
def test_the_same_of_messages_of_horovod(bandwidth):
    """A cycle of a second: the whole gradient is posted when the pass is over, and slows nothing.
    One of 0.1 us: every layer as soon as it is ready, as in buckets of one layer."""
    rule = {"kind": "horovod", "negotiation": "0 s", "negotiation_per_rank": "0 s"}
    parts, simulated = found_again({**rule, "cycle": "1 s"}, bandwidth)
    assert parts.slowed == simulated["slowdown"] == 0
    parts, simulated = found_again({**rule, "cycle": "0.1 us", "fusion": "1 B"}, bandwidth)
    assert simulated["slowdown"] == pytest.approx(parts.slowed, rel=1e-4)
    each, _ = found_again(
        {"kind": "ddp", "bucket": "1 B", "first_bucket": "1 B", "hooks": "0 s"}, bandwidth
    )
    assert parts.slowed == pytest.approx(each.slowed, rel=1e-4)


def test_no_overlap_adds_nothing():
    parts, simulated = found_again("none")
    assert (parts.hooks, parts.slowed) == (0, 0)
    assert simulated["forward"] + simulated["backward"] == pytest.approx(parts.given, rel=1e-9)
