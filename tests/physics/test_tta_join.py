"""Accuracy joined with time, worked out by hand: times of epochs, targets, intervals, the Pareto
front, the scaling, the claims."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from simshuffle.errors import InputError
from simshuffle.extensions.learning.time_to_accuracy.claims import (
    FractionComparison,
    judge_equality,
    judge_not_below,
    needs_less_exchange,
    state_claims,
)
from simshuffle.extensions.learning.time_to_accuracy.comparison import (
    DominatedSetting,
    accuracy_difference,
    clopper_pearson,
    find_dominated_settings,
    find_pareto_front,
    is_on_front,
)
from simshuffle.extensions.learning.time_to_accuracy.join import join_tables
from simshuffle.extensions.learning.time_to_accuracy.learned import (
    LearnedSetting,
    LearnedStudy,
    TrainingScale,
)
from simshuffle.extensions.learning.time_to_accuracy.replay import (
    busiest_cable,
    end_of_epoch,
    epochs_to_simulate,
    requests_after_epoch,
    weigh_epochs,
)
from simshuffle.extensions.learning.time_to_accuracy.simulated import (
    Setting,
    SimulatedScale,
    mean_of_replays,
    scale_scenario,
)
from simshuffle.extensions.learning.time_to_accuracy.tables import (
    SETTING_COLUMNS,
    SIMULATED_COLUMNS,
    JoinTables,
)
from simshuffle.extensions.learning.time_to_accuracy.text import details, is_surely_slower
from simshuffle.studies.training.wording import join_report
from simshuffle.workload.exchange import GlobalShuffle, PartialLocalShuffle
from tests.small import small

TRAINED = TrainingScale(world_size=8, num_samples=160, local_batch_size=5)


def replay(
    cold: float, steady: float, staging: float, storage: float, **values: Any
) -> dict[str, Any]:
    """What the simulation of a setting gave."""
    known = {
        "cold_epoch_s": cold,
        "epoch_s": steady,
        "staging_s": staging,
        "storage_nbytes": storage,
        "cable_tier": "leaf>host",
    }
    return dict.fromkeys(SIMULATED_COLUMNS, 0.0) | known | values


def learned(name: str, strategy: str, fraction: float | None, seeds: int) -> LearnedSetting:
    exchange: Any = GlobalShuffle(kind="global_shuffle")
    if fraction is not None:
        exchange = PartialLocalShuffle(kind="partial_local_shuffle", exchange_fraction=fraction)
    return LearnedSetting(
        name,
        strategy,
        fraction,
        {seed: f"{name}_{seed}" for seed in range(seeds)},
        {},
        exchange,
        (Path("none"),),
    )


def by_hand(
    accuracies: dict[str, dict[int, list[float]]],
    measured: dict[str, list[dict[str, Any]]],
    targets: Any = (),
) -> JoinTables:
    """The join of made-up curves (setting, seed, accuracy after each epoch) with made-up times."""
    rows = [
        (name, seed, e, a)
        for name, seeds in accuracies.items()
        for seed, reached in seeds.items()
        for e, a in enumerate(reached, 1)
    ]
    curves = pd.DataFrame(rows, columns=["setting", "seed", "epoch", "accuracy"])
    epochs = int(curves["epoch"].max())
    finals = curves[curves["epoch"] == epochs].assign(label_divergence=math.nan, between_ranks=0.1)
    made = [
        learned(n, *(n.rsplit(" ", 1)[0], float(n.split()[-1])) if " " in n else (n, None), len(s))
        for n, s in accuracies.items()
    ]
    study = LearnedStudy(
        "made",
        ("", "per_rank", 8),
        "own",
        "made up",
        ["streamlined"],
        TRAINED,
        epochs,
        made,
        curves,
        finals.drop(columns=["seed", "epoch"]),
        0,
        len(rows),
    )
    settings = [Setting(of.name, of, ()) for of in made]
    return join_tables(
        study, SimulatedScale(8, 160, 5, 1, 1, "as trained"), settings, measured, targets
    )


GLOBAL = {0: [0.5, 0.8, 0.90], 1: [0.5, 0.8, 0.92], 2: [0.6, 0.85, 0.94]}
PARTIAL = {0: [0.4, 0.90, 0.91], 1: [0.4, 0.7, 0.89], 2: [0.5, 0.75, 0.87]}
TIMES = {"global": [replay(10, 10, 0, 0)], "partial 0.1": [replay(4, 3, 2, 1e6)]}


def test_the_time_of_an_epoch():
    """Staging 2 s, cold 4 s, then 3 s each."""
    one = TIMES["partial 0.1"][0]
    assert [end_of_epoch(one, epoch) for epoch in (1, 2, 3, 30)] == [6, 9, 12, 93]
    assert end_of_epoch(one | {"epoch_s": math.nan}, 1) == 6


def test_the_join_by_hand():
    tables = by_hand({"global": GLOBAL, "partial 0.1": PARTIAL}, TIMES)
    settings = tables.settings.set_index("setting")
    assert settings["total_s"].to_dict() == {"global": 30, "partial 0.1": 12}
    assert settings["accuracy"].to_dict() == pytest.approx({"global": 0.92, "partial 0.1": 0.89})
    half = stats.t.ppf(0.975, 2) * 0.02 / math.sqrt(3)  # s of 0.90, 0.92, 0.94 is 0.02
    assert (settings["low"]["global"], settings["high"]["global"]) == pytest.approx(
        (0.92 - half, 0.92 + half)
    )
    curve = tables.curves[
        (tables.curves["setting"] == "partial 0.1") & (tables.curves["seed"] == 2)
    ]
    assert curve["time_s"].tolist() == [6, 9, 12]
    assert curve["accuracy"].tolist() == PARTIAL[2]
    # one stores nothing and is better, the other is faster
    assert settings["on_front"].tolist() == [True, True]


def test_targets_by_hand():
    """Global's mean is 0.92, so the targets are 0.91 and 0.89.

    0.89: partial's seeds 0 and 1 reach it after epochs 2 and 3, at 9 s and 12 s; seed 2 does not.
    Global's all after epoch 3, at 30 s.
    """
    tables = by_hand({"global": GLOBAL, "partial 0.1": PARTIAL}, TIMES)
    assert tables.targets["target"].unique().tolist() == pytest.approx([0.91, 0.89])
    assert tables.targets["name"].unique().tolist() == [
        "global less 1 point",
        "global less 3 points",
    ]
    rows = by_hand({"global": GLOBAL, "partial 0.1": PARTIAL}, TIMES, [0.89]).targets.set_index(
        "setting"
    )
    assert rows["reached"].to_dict() == {"global": 3, "partial 0.1": 2}
    partial = rows.loc["partial 0.1"]
    assert partial["n"] == 3
    assert partial["probability"] == pytest.approx(2 / 3)
    assert partial["time_s"] == 10.5
    assert partial["epochs"] == 2.5
    reach = stats.t.ppf(0.975, 1) * 1.5  # s / sqrt(n) of 9 and 12
    assert (partial["time_low_s"], partial["time_high_s"]) == pytest.approx(
        (10.5 - reach, 10.5 + reach)
    )
    assert (rows["time_low_s"]["global"], rows["time_high_s"]["global"]) == (30, 30)
    never = by_hand({"global": GLOBAL}, TIMES, [0.99]).targets.iloc[0]
    assert (never["reached"], never["probability_low"]) == (0, 0)
    assert math.isnan(never["time_s"])
    assert math.isnan(never["epochs"])


def test_a_target_stays_reached_if_accuracy_falls_again():
    rows = by_hand({"global": {0: [0.5, 0.9, 0.7]}}, TIMES, [0.9]).targets
    assert (rows["reached"][0], rows["time_s"][0]) == (1, 20)


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_clopper_and_pearson_as_scipy_has_it(case):
    reached, n = case
    other = stats.binomtest(reached, n).proportion_ci(0.95, "exact")
    assert clopper_pearson(reached, n) == pytest.approx((other.low, other.high), abs=1e-9)


def test_clopper_and_pearson_by_hand():
    """All of n: p^n = 0.025 at the lower end; none of n: (1 - p)^n = 0.025 at the upper."""
    assert clopper_pearson(5, 5) == pytest.approx((0.025 ** (1 / 5), 1.0))
    assert clopper_pearson(0, 5) == pytest.approx((0.0, 1 - 0.025 ** (1 / 5)))
    with pytest.raises(ValueError, match="3 of 2"):
        clopper_pearson(3, 2)
    with pytest.raises(ValueError, match="0 of 0"):
        clopper_pearson(0, 0)


# --------------------------------------------------------------------------------- the Pareto front


def test_the_front_by_hand():
    """Storage, time, accuracy lost."""
    costs = [
        [0.0, 10.0, 0.0],  # stores nothing, loses nothing
        [1.0, 3.0, 0.1],  # fastest
        [1.0, 3.0, 0.2],  # as the one above, and loses more
        [1.0, 5.0, 0.05],  # between
        [2.0, 5.0, 0.05],  # as the one above, and stores more
        [1.0, 5.0, 0.05],  # its equal does not dominate it
        [0.0, np.nan, 0.0],  # not simulated
    ]
    assert find_pareto_front(np.array(costs)).tolist() == [
        True,
        True,
        False,
        True,
        False,
        True,
        False,
    ]


def test_requests_decide_where_all_else_is_alike():
    """Of four settings the second asks for more than the first and is otherwise its equal; the
    third is worse in all four; the fourth is slower and better."""
    rows = [
        ("a", 1e9, 10.0, 100.0, 0.8),
        ("b", 1e9, 10.0, 200.0, 0.8),
        ("c", 2e9, 20.0, 300.0, 0.7),
        ("d", 1e9, 30.0, 100.0, 0.9),
        ("not simulated", math.nan, math.nan, math.nan, 0.99),
    ]
    columns = ["setting", "storage_nbytes", "total_s", "total_requests", "accuracy"]
    table = pd.DataFrame(rows, columns=columns)
    assert is_on_front(table).tolist() == [True, False, False, True, False]
    in_all = ("storage", "time", "requests", "accuracy")
    assert find_dominated_settings(table) == [
        DominatedSetting("b", "a", ("requests",)),
        DominatedSetting("c", "a", in_all),
    ]


def test_what_beats_a_setting_is_said():
    """The second stores more, takes longer, asks for more and is 5 points worse; the third asks for
    more than the first and is its equal."""
    reached = {"a 0.1": {0: [0.9], 1: [0.91]}, "b 0.1": {0: [0.85], 1: [0.86]}}
    times = {
        "a 0.1": [replay(4, math.nan, 2, 1e6, cold_requests=10)],
        "b 0.1": [replay(5, math.nan, 2, 2e6, cold_requests=20)],
        "c 0.1": [replay(4, math.nan, 2, 1e6, cold_requests=10, staging_requests=1)],
    }
    meta = {"study": "made", "scenario": "up", "rule": "as trained", "statistics": "own"}
    meta |= {"condition": {"variant": "", "batch_norm": "none", "world_size": 8}, "epochs": 1}
    found = by_hand(reached | {"c 0.1": reached["a 0.1"]}, times)
    assert found.settings["total_requests"].tolist() == [10, 20, 11]
    said = " ".join(join_report(details(found, meta | {"missing_runs": 0})).split())
    assert "b 0.1: beaten by a 0.1 in all four (+5.0 ± 0.0 points)." in said
    assert (
        "c 0.1: beaten by a 0.1 in requests; alike in storage, time and accuracy (+0.0 ± 0.0"
        " points)." in said
    )


def test_requests_of_all_epochs_follow_the_law_of_times():
    """Staging 100, cold 1000, then 600 each; two replays with 600 and 400: 100 + 1000 + 2 x 500."""
    one = replay(4, 3, 2, 0, staging_requests=100, cold_requests=1000, requests=600)
    assert [requests_after_epoch(one, epoch) for epoch in (1, 2, 3)] == [1100, 1700, 2300]
    assert mean_of_replays([one, one | {"requests": 400}], 3)["total_requests"] == 2100
    assert requests_after_epoch(one | {"requests": math.nan}, 1) == 1100


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 4), min_size=1, max_size=12))
def test_the_front_is_what_nothing_dominates(rows):
    def dominated(row: tuple[int, ...]) -> bool:
        return any(
            all(a <= b for a, b in zip(other, row, strict=True)) and other != row for other in rows
        )

    assert find_pareto_front(np.array(rows, float)).tolist() == [not dominated(row) for row in rows]


# -------------------------------------------------------------------------------------- the scaling


@pytest.mark.parametrize(
    ("values", "scale", "expected", "rule"),
    [
        ({}, None, (8, 160, 5, 1, 1), "8 ranks and 160 samples as trained"),
        ({}, "ranks", (8, 160, 5, 1, 1), "8 ranks and 160 samples as trained"),
        (
            {"workload__local_batch_size": 20},
            None,
            (8, 160, 20, 1, 1),
            "8 ranks and 160 samples as trained; local batch 20 (trained: 5)",
        ),
        (
            {"world_size": 16, "workload__dataset__num_samples": 5000},
            "trained",
            (8, 160, 5, 1, 1),
            "8 ranks and 160 samples as trained",
        ),
        (
            {"world_size": 16, "workload__dataset__num_samples": 5000},
            "samples",
            (8, 5000, 5, 31, 1),
            "8 ranks as trained; each trained sample stands for 31 of plain",
        ),
        (
            {
                "world_size": 16,
                "workload__dataset__num_samples": 5000,
                "workload__local_batch_size": 10,
            },
            "ranks",
            (16, 5000, 10, 15, 2),
            (
                "each of the 8 trained ranks stands for 2 of 16; each trained sample stands for 15"
                " of plain; local batch 10 (trained: 5)"
            ),
        ),
    ],
)
def test_the_scaling_by_hand(values, scale, expected, rule):
    """5000 samples for 160 are 31 and some; for 2 x 160 they are 15 and some."""
    base = {"workload__dataset__num_samples": 160, "workload__local_batch_size": 5, "world_size": 8}
    found = scale_scenario(small(**(base | values)), TRAINED, scale)
    simulated = (
        found.world_size,
        found.num_samples,
        found.local_batch_size,
        found.samples_each,
        found.ranks_each,
    )
    assert simulated == expected
    assert found.rule == f"{rule}; sizes of plain and step times of resnet50 on small-fat-tree"
    assert found.samples_each * found.ranks_each * TRAINED.num_samples <= found.num_samples


@pytest.mark.parametrize(
    ("values", "scale", "text"),
    [
        (
            {"world_size": 16},
            None,
            (
                "--scale: is needed where the scales differ; got 16 ranks and 160 samples in the"
                " scenario, 8 and 160"
            ),
        ),
        (
            {"workload__dataset__num_samples": 200},
            None,
            "got 8 ranks and 200 samples in the scenario, 8 and 160 in the training",
        ),
        (
            {"world_size": 12},
            "ranks",
            "world_size: must be a multiple of the 8 trained ranks; got 12",
        ),
        (
            {"world_size": 4},
            "ranks",
            "world_size: must be a multiple of the 8 trained ranks; got 4",
        ),
        (
            {"workload__dataset__num_samples": 100},
            "samples",
            "must be at least 160: 1 times the 160 trained samples; got 100",
        ),
        (
            {"world_size": 16},
            "ranks",
            "must be at least 320: 2 times the 160 trained samples; got 160",
        ),
    ],
)
def test_scales_that_do_not_go_together(values, scale, text):
    base = {"workload__dataset__num_samples": 160, "workload__local_batch_size": 5, "world_size": 8}
    with pytest.raises(InputError, match=text):
        scale_scenario(small(**(base | values)), TRAINED, scale)


# --------------------------------------------------------------------------------- what is measured


def test_replays_are_averaged():
    """3 epochs: 2 + 4 + 2 x 3 = 12 s and 2 + 6 + 2 x 5 = 18 s."""
    found = mean_of_replays(
        [replay(4, 3, 2, 1e6), replay(6, 5, 2, 3e6, cable_tier="spine>leaf")], 3
    )
    assert (found["total_s"], found["replay_spread_s"], found["replays"]) == (15, 6, 2)
    assert (found["cold_epoch_s"], found["epoch_s"], found["storage_nbytes"]) == (5, 4, 2e6)
    assert found["cable_tier"] == "leaf>host"
    assert set(found) <= set(SETTING_COLUMNS)


def test_the_busiest_cable_is_a_cable_of_that_epoch():
    rows = [
        (1, "h0>leaf0", "host>leaf", 0.9),
        (2, "h0>leaf0", "host>leaf", 0.2),
        (2, "leaf0>s0", "leaf>spine", 0.3),
        (2, "h0.ssd", "ssd", 1.0),
    ]
    links = pd.DataFrame(rows, columns=["epoch", "link", "tier", "mean_utilisation"])
    assert busiest_cable(links, {2: 1.0}) == {"cable_tier": "leaf>spine", "cable_utilisation": 0.3}
    assert busiest_cable(links, {3: 1.0}) == {"cable_tier": "", "cable_utilisation": 0.0}


def test_as_many_epochs_are_simulated_as_it_takes_to_see_every_number_of_samples():
    """Q N/M = 1.6: 2, 1, 2, 1, 2 samples; 0.1: mostly none. The first epoch is cold and does not
    count."""
    assert epochs_to_simulate([2, 1, 2, 1, 2]) == 3
    assert epochs_to_simulate([2, 1, 1, 1, 2]) == 5
    assert epochs_to_simulate([3, 3, 3]) == 2
    assert epochs_to_simulate([0] * 9 + [1]) == 8
    assert epochs_to_simulate([4]) == 1
    assert epochs_to_simulate([]) == 0


def test_warm_epochs_count_as_often_as_the_training_has_epochs_like_them():
    """Of the four warm epochs of 2, 1, 2, 1, 2 samples half are like the second and half like the
    third."""
    assert weigh_epochs([2, 1, 2, 1, 2], 3) == {2: 0.5, 3: 0.5}
    assert weigh_epochs([2, 1, 1, 1, 2], 5) == pytest.approx({2: 0.25, 3: 0.25, 4: 0.25, 5: 0.25})
    assert weigh_epochs([0] * 9 + [1], 8) == pytest.approx(dict.fromkeys(range(2, 9), 1 / 7))
    assert weigh_epochs([4], 1) == {}


# --------------------------------------------------------------------------------------- the claims


def tables_of(finals: dict[str, list[float]], **values: float) -> JoinTables:
    """Tables of one epoch with these accuracies by seed; ``values`` are of the simulation, the same
    for all."""
    curves = {
        name: {seed: [accuracy] for seed, accuracy in enumerate(found)}
        for name, found in finals.items()
    }
    return by_hand(curves, {name: [replay(1, math.nan, 0, 0, **values)] for name in finals})


def test_not_below_by_the_interval():
    """Differences to global by seed, in points: 0 ± little; -5 ± little; -1 with one far off."""
    found = tables_of(
        {
            "global": [0.9, 0.9, 0.9],
            "a 0.1": [0.9, 0.901, 0.899],
            "b 0.1": [0.85, 0.851, 0.849],
            "c 0.1": [0.9, 0.85, 0.92],
        }
    )
    differences = [
        accuracy_difference(found, name, "global") for name in ("a 0.1", "b 0.1", "c 0.1")
    ]
    assert [each.mean for each in differences] == pytest.approx([0.0, -0.05, -0.01])
    assert [judge_not_below(each) for each in differences] == ["not below", "below", "undecided"]
    assert [judge_equality(each) for each in differences] == ["the same", "different", "undecided"]


def at(fraction: float, verdict: str) -> FractionComparison:
    return FractionComparison(
        fraction, accuracy_difference(tables_of({"global": [0.9]}), "global", "global"), verdict
    )


@pytest.mark.parametrize(
    ("found", "other", "verdict"),
    [
        (["not below"] * 2, ["below", "not below"], "yes"),
        (["not below"] * 2, ["undecided", "not below"], "undecided"),
        (["below", "not below"], ["not below"] * 2, "no"),
        (["not below"] * 2, ["not below"] * 2, "no"),
        (["undecided", "not below"], ["not below"] * 2, "no"),
        (["undecided", "not below"], ["below", "not below"], "undecided"),
        (["below"] * 2, ["below"] * 2, "undecided"),
        (["below"] * 2, ["below", "not below"], "no"),
        (["below", "not below"], ["below"] * 2, "yes"),
    ],
)
def test_needing_less_exchange(found, other, verdict):
    one, two = (
        [at(q, each) for q, each in zip((0.1, 0.3), verdicts, strict=True)]
        for verdicts in (found, other)
    )
    assert needs_less_exchange(one, two) == verdict


def test_the_claims_in_words():
    tables = tables_of(
        {
            "global": [0.9, 0.9],
            "IS 0.3": [0.9, 0.901],
            "IS-Pair 0.3": [0.9, 0.901],
            "ILag-Pair 0.3": [0.9, 0.901],
        }
    )
    settings = tables.settings.set_index("setting")
    settings.loc["IS 0.3", ["exchange_s", "ge_wu_s", "impt_s"]] = [3.0, 1.0, 2.0]
    settings.loc["IS-Pair 0.3", ["exchange_s", "ge_wu_s", "impt_s"]] = [1.5, 1.5, 2.0]
    settings.loc["ILag-Pair 0.3", ["exchange_s", "ge_wu_s", "impt_s"]] = [1.5, 1.5, 0.0]
    said = " ".join(state_claims(JoinTables(tables.curves, settings.reset_index(), tables.targets)))
    assert (
        "EXCHANGE 1.5 s against 3 s, GE+WU 1.5 s against 1 s; together 3 s against 4 s (-25 %):"
        " less." in said
    )
    assert (
        "ILag-Pair 0.3: IMPT 0 s against 2 s; accuracy minus that of IS-Pair +0.0 ± 0.0 points: the"
        " same within 1 point." in said
    )
    assert "IS-Pair needs a smaller Q than IS: no." in said
    assert "Not trained here, or without global shuffle to compare with: partial." in said


def test_slower_is_said_of_paired_times():
    """One epoch later with every seed is slower; later with one seed and earlier with another is
    not told apart."""
    late = {seed: [0.1, 0.1, 0.9 + seed / 100] for seed in range(3)}
    early = {seed: [0.1, 0.9, 0.9] for seed in range(3)}
    mixed = {0: [0.1, 0.1, 0.9], 1: [0.9, 0.9, 0.9], 2: [0.1, 0.9, 0.9]}
    every = {name: [replay(4, 3, 2, 0)] for name in ("a 0.1", "b 0.1", "c 0.1")}
    tables = by_hand({"a 0.1": late, "b 0.1": early, "c 0.1": mixed}, every, [0.9])
    assert is_surely_slower(tables, "a 0.1", "b 0.1", 0.9)
    assert not is_surely_slower(tables, "c 0.1", "b 0.1", 0.9)
