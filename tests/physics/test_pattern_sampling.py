"""The time of an exchange from some of its steps: by hand where the law is exact, and against the
simulation of all steps within the interval that is said."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simshuffle.fabric.network import Analytic, Fluid, Packet
from simshuffle.job.scenario.scenario import Scenario, load_scenario
from simshuffle.studies.congestion.cell import RankPlacement, SentCell, TrafficCell
from simshuffle.studies.congestion.patterns import Variant
from simshuffle.studies.congestion.sampling import (
    FEWEST_STEPS,
    TimeEstimate,
    busiest_seconds,
    choose_steps,
    drift_width,
    estimate_barrier_steps,
    estimate_drifting_chain,
    estimate_paired_chain,
)
from simshuffle.studies.congestion.traffic import build_exchange, samples_to_send
from tests.physics.test_patterns import silent_tree, sizes


def scenario(**values: Any) -> Scenario:
    """64 ranks of ABCI, 400 samples each, which differ in size."""
    return load_scenario(
        "quickstart",
        {
            "sweep": {},
            "world_size": 64,
            "workload.dataset.num_samples": 256_000,
            "workload.exchange": "partial_local_shuffle:exchange_fraction=0.1",
            **values,
        },
    )


def cell(variant: Variant, most_messages: int) -> TrafficCell:
    whole = scenario()
    return TrafficCell(
        RankPlacement.of_scenario(whole),
        samples_to_send(whole),
        variant,
        Fluid(),
        1,
        "",
        False,
        most_messages=most_messages,
    )


# -------------------------------------------------------------------------------------- the laws


def test_the_busiest_link_of_each_step_by_hand():
    """Pairs on one leaf share no cable, so the busiest link of a step has its largest message."""
    on = silent_tree(2, 4, 16)
    nbytes = sizes(16)
    traffic = build_exchange(
        Variant("pairing_topology", "sample", barrier=True),
        on,
        nbytes,
        np.arange(8),
        rng=np.random.default_rng(0),
        importance=np.zeros(16),
    )
    assert busiest_seconds(on.links, traffic) == pytest.approx(nbytes.max(axis=1) / 12.5e9)


def test_the_sum_of_steps_is_exact_where_they_follow_from_their_busiest_link():
    """t = 3 b + 2 in every step, and a barrier of 1 before all but the first: by hand
    T = 3 sum b + 2 n + (n - 1)."""
    busiest = np.arange(1.0, 41.0)
    chosen = choose_steps(40, 16, np.random.default_rng(1))
    seconds = 3 * busiest[chosen] + 2 + 1
    ends = np.cumsum(seconds) - 1
    found = estimate_barrier_steps(ends, 1.0, busiest, chosen)
    assert found.seconds == pytest.approx(3 * busiest.sum() + 2 * 40 + 39)
    assert found.high - found.low == pytest.approx(0.0, abs=1e-9)


def test_the_interval_of_the_sum_holds_it_in_19_of_20_draws():
    rng = np.random.default_rng(2)
    busiest = rng.uniform(1.0, 2.0, 400)
    seconds = 1.5 * busiest + rng.normal(0.0, 0.2, 400)
    held = 0
    for seed in range(400):
        chosen = choose_steps(400, 25, np.random.default_rng(seed))
        found = estimate_barrier_steps(np.cumsum(seconds[chosen]), 0.0, busiest, chosen)
        held += found.low <= seconds.sum() <= found.high
    # two standard errors of 25 steps: 94 %
    assert 0.90 < held / 400 < 0.98


def test_a_chain_with_fresh_partners_by_hand():
    """Three ranks that need 2, 2 and 2.5 s for a step of 10 bytes; 16 of 64 steps are simulated.

    The mean rank needs 13 / 6 s a step, so 64 steps 416 / 3 s. The last rank is (2.5 - 13 / 6) 16 =
    16 / 3 s behind it after 16 steps, and twice as much after 64: T = 448 / 3 s."""
    finish = np.outer(np.arange(1, 17), [2.0, 2.0, 2.5])
    chosen = np.arange(0, 64, 4)
    found = estimate_drifting_chain(finish, np.full(64, 10.0), chosen, 0.1)
    assert found.seconds == pytest.approx(448 / 3)
    assert (found.low, found.high) == pytest.approx((0.9 * 448 / 3, 1.1 * 448 / 3))
    # steps of half as many bytes that are left out count half
    nbytes = np.where(np.isin(np.arange(64), chosen), 10.0, 5.0)
    found = estimate_drifting_chain(finish, nbytes, chosen, 0.1)
    assert found.seconds == pytest.approx((16 + 24) * 13 / 6 + 2 * 16 / 3)


def test_the_pace_of_a_chain_is_that_of_the_middle_half_of_its_steps():
    """From the second to the sixth of eight steps, 8 s for four bytes; eight bytes are left out."""
    finish = np.array([5.0, 6, 8, 10, 12, 14, 30, 31])[:, None]
    found = estimate_drifting_chain(finish, np.ones(16), np.arange(8), 0.0)
    assert found.seconds == pytest.approx(31 + 2 * 8)


def test_a_chain_with_one_partner_by_hand():
    """3 s where the busiest link needs 2 s: 60 s where it needs 40 s, and never less than these."""
    found = estimate_paired_chain(3.0, 2.0, 40.0)
    assert (found.seconds, found.low) == pytest.approx((60.0, 58.2))
    assert estimate_paired_chain(2.001, 2.0, 40.0).low == 40.0


def test_the_interval_of_a_drift_narrows_with_the_steps():
    assert drift_width(400, 64, by_distance=False) == pytest.approx(0.05 * np.sqrt(0.84))
    assert drift_width(400, 64, by_distance=True) == pytest.approx(0.1 * np.sqrt(0.84))
    assert drift_width(64, 64, by_distance=False) == 0.0


# ------------------------------------------------------------------------------- beside simulations

VARIANTS = [
    Variant(pattern, batching, barrier)  # type: ignore[arg-type]
    for pattern in ("random_permutations", "linear_shift", "xor", "pairing_random")
    for batching, barrier in (("sample", True), ("sample", False))
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_an_interval_from_some_steps_holds_the_time_of_all(variant):
    some, whole = cell(variant, 64 * 64), cell(variant, 0)
    assert (some.steps_simulated, whole.steps_simulated, whole.steps) == (64, 0, 400)
    assert some.key != whole.key
    found, exact = (each.run(lambda share: None).values["times"] for each in (some, whole))
    assert found["low_s"] <= exact["time_s"] <= found["high_s"]
    assert found["high_s"] - found["low_s"] < 0.25 * exact["time_s"]
    assert exact["low_s"] == exact["time_s"] == exact["high_s"]
    # what has a closed form is that of all steps
    for name in ("bound_s", "alone_s", "first_contention", "messages", "barriers", "nbytes"):
        assert found[name] == exact[name], name


def test_a_coarse_all_to_all_holds_the_exact_one_and_is_not_below_its_bound():
    some, whole = (cell(Variant("all_to_all"), most) for most in (100, 0))
    assert (some.is_coarse, whole.is_coarse) == (True, False)
    found, exact = (each.run(lambda share: None).values["times"] for each in (some, whole))
    assert found["low_s"] <= exact["time_s"] * (1 + 1e-9)
    assert exact["time_s"] <= found["high_s"]
    assert found["wire_s"] >= found["bound_s"] * (1 - 1e-9)
    assert found["high_s"] / found["low_s"] < 1.021


def test_few_steps_are_all_simulated():
    variant = Variant("random_permutations", "sample")
    few = cell(variant, 1)
    assert few.steps_simulated == FEWEST_STEPS
    assert replace(few, most_messages=64 * 267).steps_simulated == 0  # 1.5 x 267 > 400
    assert cell(Variant("pairing_random", "all"), 1).steps_simulated == 0
    # 267 is the most that is worth it: 1.5 x 266 is below 400
    assert replace(few, most_messages=64 * 266).steps_simulated == 266
    assert replace(few, most_messages=64 * 32 + 63).steps_simulated == FEWEST_STEPS
    # the fluid model alone samples, and not without a limit
    assert replace(few, model=Packet()).steps_simulated == 0
    assert replace(few, most_messages=0).steps_simulated == 0


def test_an_all_to_all_is_coarse_where_it_has_more_messages_than_are_simulated():
    dense = cell(Variant("all_to_all"), 64 * 63 - 1)
    assert (dense.messages, dense.steps, dense.is_coarse) == (64 * 63, 1, True)
    assert not replace(dense, most_messages=64 * 63).is_coarse
    assert not replace(dense, most_messages=0).is_coarse
    assert not replace(dense, model=Packet()).is_coarse
    assert not cell(Variant("xor", "sample"), 1).is_coarse


def test_an_estimate_is_never_below_its_bound():
    assert TimeEstimate.within(10.0, 2.0) == TimeEstimate(10.0, 8.0, 12.0)
    assert TimeEstimate.within(10.0, 2.0, 9.0) == TimeEstimate(10.0, 9.0, 12.0)
    assert TimeEstimate.within(10.0, 2.0, 11.0) == TimeEstimate(11.0, 11.0, 13.0)


def test_the_error_of_a_sum_of_steps_by_hand():
    """Steps of 2, 1, 1 and 2 s where links need 1, 2, 3 and 4 s; four of eight are simulated. The
    mean is 1.5 s, the slope 0, and the squares of what is left 4 x 0.25."""
    busiest = np.array([1.0, 9, 2, 3, 1, 4, 0, 0])
    chosen = np.array([0, 2, 3, 5])
    found = estimate_barrier_steps(np.cumsum([2.0, 1, 1, 2]), 0.0, busiest, chosen)
    assert found.seconds == 20.0  # no less than all that the links need, though 8 x 1.5 is 12
    # 8 sqrt((1 - 4 / 8) x 1 / (4 - 2) / 4) = 2
    assert (found.low, found.high) == pytest.approx((20.0, 20.0 + 2 * 2.0))
    # links that need as long in each step say nothing of one step beside another
    alike = estimate_barrier_steps(np.cumsum([2.0, 1, 1, 2]), 0.5, np.ones(8), chosen)
    # with the barrier before the first step, 2.5 + 4 s of four; one barrier less in the sum
    assert alike.seconds == pytest.approx(8 * 6.5 / 4 - 0.5)


@pytest.mark.parametrize(
    ("variant", "rate"),
    [
        # ranks that wait for each other, or send once, are in step
        (Variant("xor", "sample", barrier=True), 6.0),
        (Variant("xor", "all"), 6.0),
        (Variant("pairing_random", "sample"), 6.0),
        # 35 s a million messages of 2,048 ranks that drift, to the power of 0.85
        (Variant("xor", "sample"), 35 * (64 / 2048) ** 0.85),
    ],
)
def test_the_cost_of_a_fluid_exchange_by_hand(variant, rate):
    """0.01 s, and 1.5 s for the routes of a million messages; a simulation more with messages."""
    exchange = cell(variant, 0)
    messages = 64 * (1 if variant.batching == "all" else 400)
    assert exchange.messages == messages
    routes = 0.01 + 1.5 * messages / 1e6
    assert exchange.cost == pytest.approx(routes + 2 * rate * messages / 1e6)
    alone = replace(exchange, wire_only=True)
    assert alone.cost == pytest.approx(routes + rate * messages / 1e6)
    analytic = replace(exchange, model=Analytic())
    assert analytic.cost == pytest.approx(routes + 2 * 0.3 * messages / 1e6)
    # bytes: 200 MB, 25 of a pair of ranks, 150 of a message for each simulation and once more
    assert exchange.memory == pytest.approx(200e6 + 25 * 64**2 + 150 * 3 * messages)
    assert alone.memory == pytest.approx(200e6 + 25 * 64**2 + 150 * 2 * messages)


def test_the_cost_of_what_is_left_out_of_an_exchange():
    drifting = cell(Variant("xor", "sample"), 64 * 50)
    rate = 35 * (64 / 2048) ** 0.85
    # 50 of 400 steps are simulated, and the routes are those of all
    expected = 0.01 + 1.5 * 25_600 / 1e6 + 2 * rate * 3200 / 1e6
    assert drifting.cost == pytest.approx(expected)
    crowd = 23 * (64 / 2048) ** 0.85
    dense = cell(Variant("all_to_all"), 0)
    routes = 0.01 + 1.5 * 4032 / 1e6
    assert dense.cost == pytest.approx(routes + crowd * 4032 / 1e6)
    coarse = replace(dense, most_messages=100)
    assert coarse.cost == pytest.approx(routes + 0.13 * crowd * 4032 / 1e6)


def test_the_cost_of_packets_and_of_drawing_sizes():
    exchange = replace(cell(Variant("xor", "all"), 0), model=Packet())
    sent = exchange.samples
    packets = 400 * 64 * sent.mean_nbytes / exchange.model.mtu
    expected = 0.01 + 1.5 * 64 / 1e6 + 2 * 1.5 * (64 + packets) / 1e6
    assert exchange.cost == pytest.approx(expected)
    # 0.1 s a million sizes, of 3 seeds of 400 samples of 64 ranks
    drawn = SentCell(exchange.place, sent, 3, "")
    assert drawn.cost == pytest.approx(0.02 + 0.1 * 3 * 400 * 64 / 1e6)
    assert drawn.memory == pytest.approx(200e6 + 25 * 64**2)


def test_runs_in_which_nothing_is_drawn_are_one():
    """Partners by distance are drawn from nothing, and neither are samples of one size."""
    fixed, drawn = cell(Variant("xor", "sample"), 0), cell(Variant("pairing_random", "sample"), 0)
    even = scenario(**{"workload.dataset.sample_size.std": "0 B"})
    of_one_size = {"place": RankPlacement.of_scenario(even), "samples": samples_to_send(even)}

    def differs(run: TrafficCell, **changes: Any) -> bool:
        return replace(run, **changes).key != run.key

    assert differs(fixed, seed=2) and differs(drawn, seed=2)
    assert not differs(replace(fixed, **of_one_size), seed=2)
    assert differs(replace(drawn, **of_one_size), seed=2)
    # what a run is called, and whether its links are kept, decides nothing of its times
    assert not differs(fixed, label="else")
    assert differs(fixed, wire_only=True) and differs(fixed, variant=Variant("xor", "all"))
    assert differs(fixed, model=Analytic()) and differs(fixed, most_messages=64 * 40)
    assert differs(cell(Variant("all_to_all"), 0), most_messages=5)
