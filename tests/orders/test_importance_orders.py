"""Orders of the poster of Nguyen and Tanimura (Efficient Sample Exchanging), Figure 3, on the full
model at 2048 ranks: at equal Q.

None of them is put in. What comes out otherwise than on the poster, and why, is told in
docs/mechanisms.md.
"""

import pytest

from simshuffle import load_scenario, run
from simshuffle.report.report import book_as_papers


@pytest.fixture(scope="module")
def seconds():
    """Seconds of a cold epoch by strategy and label."""
    result = run(load_scenario("paper/importance", {"epochs": 1}))
    table = book_as_papers(result.breakdown)
    table = table.assign(run=table["run"].str.split("-0.1").str[0])
    return table.set_index(["run", "label"])["seconds"]


def test_pairing_lowers_exchange(seconds):
    assert seconds["IS-Pair", "EXCHANGE"] < 0.6 * seconds["IS", "EXCHANGE"]


def test_pairing_lowers_gradient_exchange_only_slightly(seconds):
    # "significantly" on the poster; here gradients and samples are never on the network at the same
    # time
    assert 0.97 * seconds["IS", "GE+WU"] < seconds["IS-Pair", "GE+WU"] < seconds["IS", "GE+WU"]


def test_lagging_removes_the_measurement_of_importance(seconds):
    assert seconds["IS-Pair", "IMPT"] > 0.1 * seconds["IS-Pair"].sum()
    assert seconds["ILag-Pair", "IMPT"] < 1e-3
    assert seconds["ILag-Pair", "EXCHANGE"] == pytest.approx(
        seconds["IS-Pair", "EXCHANGE"], rel=0.1
    )


def test_measuring_importance_costs_more_than_pairing_saves_on_random_exchange(seconds):
    assert seconds["partial"].sum() < seconds["IS"].sum()
    assert seconds["ILag-Pair"].sum() < seconds["partial"].sum()
    assert seconds["IS-Pair"].sum() < seconds["IS"].sum()
