"""The interval score, coverage and naive score, worked out by hand from Gneiting and Raftery
(2007), JASA 102, Eq. 43: S = (u - l) + 2/alpha (l - x) [x < l] + 2/alpha (x - u) [x > u], with
alpha = 0.1, so 20 a unit outside. Here l, u and x are natural logarithms."""

from math import e, log

import numpy as np
import pandas as pd
import pytest

from simshuffle.extensions.calibration.validation.intervals import (
    learn_residuals,
    num_ranks,
    prediction_intervals,
)
from simshuffle.extensions.calibration.validation.scores import score_intervals, winkler
from simshuffle.extensions.calibration.validation.table import (
    SCHEMA,
    count_covered_rows,
    summarize_sets,
)
from simshuffle.extensions.calibration.validation.text import score_text
from simshuffle.job.uncertainty.residuals import Residuals, residuals


def test_the_score_is_the_width_and_twenty_times_the_distance_outside():
    # ends at ln 1/e = -1 and ln e = 1: width 2. Inside: 2. At x = e^1.5, 0.5 above: 2 + 20 * 0.5
    # = 12. At x = e^-1.25, 0.25 below: 2 + 20 * 0.25 = 7. On an end nothing is added.
    low, high = np.full(4, 1 / e), np.full(4, e)
    found = winkler(low, high, np.array([1.0, e**1.5, e**-1.25, e]))
    assert found == pytest.approx([2.0, 12.0, 7.0, 2.0])


def test_the_score_has_no_unit():
    values = np.array([3.0]), np.array([5.0]), np.array([7.0])
    (seconds,), (milliseconds,) = winkler(*values), winkler(*(1e3 * of for of in values))
    assert seconds == pytest.approx(milliseconds)
    assert seconds == pytest.approx(log(5 / 3) + 20 * log(7 / 5))


def table_of(*rows, **columns):
    """Rows of set, use, measured, predicted, interval_low and interval_high."""
    names = ["set", "use", "measured", "predicted", "interval_low", "interval_high"]
    out = pd.DataFrame(rows, columns=names).assign(case="c", quantity="q", unit="s", **columns)
    out["error"] = out["predicted"] / out["measured"] - 1
    ranges = {"low": np.nan, "high": np.nan, "traffic": 0.0, "inside": True}
    ends = {"predicted_low": out["predicted"], "predicted_high": out["predicted"]}
    return out.assign(**ranges, **ends).reindex(columns=list(SCHEMA.columns))


def test_a_set_by_hand():
    # errors: 10/8 - 1 = 0.25 and 10/16 - 1 = -0.375, mean |error| = 0.3125, so the naive interval
    # is 10 / 1.3125 = 7.619 to 13.125. Own interval 5 to 20: both inside, score ln 4 each. Naive:
    # 8 is inside, 16 above 13.125: mean of 2 ln 1.3125 and the same + 20 ln(16 / 13.125).
    rows = table_of(
        ("a", "predict", 8.0, 10.0, 5.0, 20.0),
        ("a", "predict", 16.0, 10.0, 5.0, 20.0),
        ("a", "fit", 16.0, 10.0, 5.0, 6.0),
        ("b", "predict", 4.0, 1.0, 1.0, 2.0),
    )
    found = summarize_sets(rows).set_index(["set", "use"])
    naive = 2 * log(1.3125) + 10 * log(16 / 13.125)
    columns = ["coverage", "interval_score", "naive_score"]
    assert found.loc[("a", "predict"), columns].tolist() == pytest.approx([1.0, log(4), naive])
    # one row, error 0.75: naive 0.571 to 1.75, of which 4 is ln(4 / 1.75) outside
    assert found.loc[("b", "predict"), columns].tolist() == pytest.approx(
        [0.0, log(2) + 20 * log(2), 2 * log(1.75) + 20 * log(4 / 1.75)]
    )
    assert found.loc[("a", "fit"), columns].isna().all()


def test_the_total_counts_predicted_rows_and_sets_that_beat_the_naive_interval():
    rows = table_of(
        ("a", "predict", 8.0, 10.0, 5.0, 20.0),
        ("a", "predict", 16.0, 10.0, 5.0, 20.0),
        ("a", "fit", 16.0, 10.0, 5.0, 20.0),
        ("b", "predict", 1.5, 1.0, 1.0, 60.0),  # ln 60 = 4.1; naive 2 ln(4/3) + 20 ln(9/8) = 2.9
        ("c", "predict", 3.0, 1.0, np.nan, np.nan),
        ("d", "predict", 1.5, 1.0, 1.0, 2.0),
    )
    found = count_covered_rows(rows)
    assert (found["rows"], found["scored"], found["covered"]) == (5, 4, 4)
    assert (found["scored_sets"], found["sets_better_than_naive"]) == (3, 2)
    assert "4 of 4 measured values (100 %)" in score_text(rows)
    assert "in 2 of 3 sets" in score_text(rows)


def test_rows_without_a_measured_value_or_an_interval_do_not_count():
    rows = table_of(
        ("a", "predict", 8.0, 10.0, 5.0, 20.0),
        ("a", "predict", np.nan, 10.0, 11.0, 20.0),
        ("a", "predict", 8.0, 10.0, np.nan, np.nan),
    )
    assert score_intervals(rows)[:2] == pytest.approx((1.0, log(4)))
    assert all(np.isnan(score_intervals(rows[2:])))
    assert score_text(rows[2:]) == ""


def residuals_of(*rows):
    columns = ["set", "mechanism", "ranks", "residual"]
    return Residuals(pd.DataFrame(rows, columns=columns).assign(repeats=np.nan))


def test_what_was_missed_counts_by_mechanism_ranks_and_size_of_the_set():
    # at 8 ranks: a has weight 1/sqrt(2) each, b of another mechanism 0.1, c of 32 ranks exp(-1):
    # cumulated at the middles 0.354, 1.061, 1.464, 1.698 of 1.882
    known = residuals_of(
        ("a", "step", 8, -1.0),
        ("a", "step", 8, 0.0),
        ("b", "files", 8, 1.0),
        ("c", "step", 32, 2.0),
    )
    middles = np.array([0.5 / 2**0.5, 1.5 / 2**0.5, 2**0.5 + 0.05, 2**0.5 + 0.1 + np.exp(-1) / 2])
    whole = 2**0.5 + 0.1 + np.exp(-1)
    found = known.quantiles("step", 8.0, middles / whole)
    assert found == pytest.approx([-1.0, 0.0, 1.0, 2.0])
    # without c only a and b are left
    assert known.quantiles("step", 8.0, np.array([1.0]), without="c") == pytest.approx([1.0])


def test_a_row_never_sees_its_own_set():
    rows = table_of(
        ("testbed", "predict", 1e6, 3.0, np.nan, np.nan),
        ("testbed", "none", np.nan, np.nan, np.nan, np.nan),
        ("mine", "predict", np.nan, 3.0, np.nan, np.nan),
        kind="testbed",
        values="",
    )
    found, shipped = prediction_intervals(rows), residuals()
    assert (found.index == rows.index).all()
    assert found.iloc[1].isna().all()
    ends = np.array([0.05, 0.95])
    without = 3.0 * np.exp(shipped.quantiles("links", 32.0, ends, "testbed"))
    assert found.iloc[0].tolist() == pytest.approx(without.tolist())
    # a set of one's own has those of all others, the testbed's too
    own = 3.0 * np.exp(shipped.quantiles("links", 32.0, ends))
    assert found.iloc[2].tolist() == pytest.approx(own.tolist())
    assert np.ptp(own) < np.ptp(without)


def test_a_rate_is_too_high_where_a_time_is_too_short():
    """Laws that are mostly too fast: a time may be far longer than predicted, and a rate far lower.
    A rate of which half was measured stands for twice the time."""
    time = table_of(("mine", "predict", np.nan, 3.0, np.nan, np.nan), kind="allreduce", values="")
    rate = time.assign(quantity="bus bandwidth")
    (low, high), (rate_low, rate_high) = (
        prediction_intervals(rows).to_numpy()[0] / 3.0 for rows in (time, rate)
    )
    assert high > 1 / low > 1.0
    assert (rate_low, rate_high) == pytest.approx((1 / high, 1 / low))
    half = rate.assign(measured=1.5)
    assert learn_residuals(half).rows["residual"].tolist() == pytest.approx([log(2)])
    late = time.assign(measured=6.0)
    assert learn_residuals(late).rows["residual"].tolist() == pytest.approx([log(2)])


def test_what_nobody_knows_of_a_row_widens_its_interval_in_squares():
    rows = table_of(*[("mine", "predict", 3.0, 3.0, np.nan, np.nan)] * 2, kind="testbed", values="")
    rows = rows.assign(spread=["", "load=0..1"], predicted_low=1.5, predicted_high=6.0)
    plain, wide = np.log(prediction_intervals(rows).to_numpy() / 3.0)
    assert wide == pytest.approx([-np.hypot(plain[0], log(2)), np.hypot(plain[1], log(2))])


@pytest.mark.parametrize(
    ("values", "case", "ranks"),
    [
        ("world_size=4096;nbytes=4 B", "64 x 64 hosts", 4096.0),
        ("nbytes=4 B", "Leonardo, 1,024 ranks on 256 hosts", 1024.0),
        ("nbytes=4 B", "Large allreduce, 3 hosts of 8 A100", 3.0),
        ("nbytes=4 B", "a row of nothing", 32.0),
    ],
)
def test_ranks_of_a_row_are_read_with_their_thousands(values, case, ranks):
    assert num_ranks({"values": values, "case": case}) == ranks
