"""Shapley values under precedence constraints, by hand and by going through all orders."""

from itertools import pairwise, permutations, product

import numpy as np
import pandas as pd
import pytest

from simshuffle.studies.mechanisms.switches import contributions, shapley, state, step_weights, word
from simshuffle.studies.mechanisms.tables import ALL


def table(of_state, label="epoch", seed=1):
    """Rows of the table `runs` from seconds by state, states as words."""
    return pd.DataFrame(
        [(word, seed, label, value) for word, value in of_state.items()],
        columns=["state", "seed", "label", "seconds"],
    )


def switches(*keys):
    return pd.DataFrame([(key, "a", "b") for key in keys], columns=["switch", "start", "end"])


def test_increments_that_add_up_are_the_contributions():
    increments = {"x": -0.5, "y": 0.2, "z": -0.1}
    words = ["".join(word) for word in product("01", repeat=3)]
    runs = table(
        {
            word: 4.0 + sum(d for d, on in zip(increments.values(), word, strict=True) if on == "1")
            for word in words
        }
    )
    found = contributions(switches(*increments), runs).set_index("switch")
    for key, increment in increments.items():
        for column in ("first_s", "last_s", "mean_s", "min_s", "max_s"):
            assert found.loc[key, column] == pytest.approx(increment)
        assert found.loc[key, "share"] == pytest.approx(increment / -0.4)
    assert found.loc[ALL, "mean_s"] == pytest.approx(-0.4)
    assert found["share"].drop(ALL).sum() == pytest.approx(1.0)


def test_two_switches_that_do_the_same_share_it():
    found = contributions(
        switches("x", "y"), table({"00": 3.0, "10": 2.0, "01": 2.0, "11": 2.0})
    ).set_index("switch")
    assert found.loc["x", ["first_s", "last_s", "mean_s"]].tolist() == pytest.approx(
        [-1.0, 0.0, -0.5]
    )
    assert found.loc["y", "mean_s"] == pytest.approx(-0.5)


def test_a_switch_that_needs_another_comes_after_it():
    # x before y: the one order left
    found = contributions(switches("x", "y"), table({"00": 10.0, "10": 7.0, "11": 2.0})).set_index(
        "switch"
    )
    assert found.loc["x", ["first_s", "mean_s"]].tolist() == [-3.0, -3.0]
    assert found.loc["y", ["last_s", "mean_s"]].tolist() == [-5.0, -5.0]
    assert np.isnan(found.loc["x", "last_s"])
    assert np.isnan(found.loc["y", "first_s"])


def test_three_switches_of_which_one_needs_another_by_hand():
    # y needs x, so the orders are xyz, xzy, zxy:
    # x: 1, 1, 8 - 2; y: 4 - 1, 16 - 8, 16 - 8; z: 16 - 4, 8 - 1, 2
    values = {"000": 0.0, "100": 1.0, "001": 2.0, "110": 4.0, "101": 8.0, "111": 16.0}
    found = contributions(switches("x", "y", "z"), table(values)).set_index("switch")["mean_s"]
    assert found["x"] == pytest.approx(8 / 3)
    assert found["y"] == pytest.approx(19 / 3)
    assert found["z"] == pytest.approx(7)
    assert found.drop(ALL).sum() == pytest.approx(found[ALL])


@pytest.mark.parametrize("seed", range(5))
def test_against_all_orders_one_after_the_other(seed):
    rng = np.random.default_rng(seed)
    count = 4
    states = [
        s
        for s in product((False, True), repeat=count)
        if not (s[2] and not s[1]) and (sum(s) in (0, count) or rng.random() < 0.9)
    ]
    values = {of: rng.random(2) for of in states}
    changes = []
    for order in permutations(range(count)):
        way = [
            tuple(number in order[:place] for number in range(count)) for place in range(count + 1)
        ]
        if all(of in values for of in way):
            step = {
                number: values[b] - values[a]
                for number, (a, b) in zip(order, pairwise(way), strict=True)
            }
            changes.append([step[number] for number in range(count)])
    np.testing.assert_allclose(shapley(values), np.mean(changes, axis=0))


def test_every_order_takes_as_many_steps_as_there_are_switches():
    weights = step_weights(list(product((False, True), repeat=5)))
    assert sum(weights.values()) == pytest.approx(5)
    assert weights[(False,) * 5, 2] == pytest.approx(1 / 5)


def test_no_order_if_none_is_possible():
    assert step_weights([(False, False), (True, True)]) == {}
    assert step_weights([]) == {}


def test_labels_add_up_to_the_epoch_and_seeds_are_kept_apart():
    rng = np.random.default_rng(1)
    frames = []
    for seed in (1, 2, 3):
        parts = {
            label: {word: rng.random() for word in ("00", "01", "10", "11")}
            for label in ("EXCHANGE", "GE+WU")
        }
        whole = {word: sum(of[word] for of in parts.values()) for word in ("00", "01", "10", "11")}
        frames += [table(of, label, seed) for label, of in {"epoch": whole, **parts}.items()]
    found = contributions(switches("x", "y"), pd.concat(frames))
    of_label = found.pivot(index="switch", columns="label", values="mean_s")
    np.testing.assert_allclose(of_label["EXCHANGE"] + of_label["GE+WU"], of_label["epoch"])
    assert (found["min_s"] <= found["mean_s"]).all()
    assert (found["mean_s"] <= found["max_s"]).all()
    assert (found["min_s"] < found["max_s"]).any()


def test_states_are_written_and_read():
    assert word((True, False, True)) == "101"
    assert state("101") == (True, False, True)
