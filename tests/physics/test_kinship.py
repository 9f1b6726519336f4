"""Errors given measured runs, by hand: Gaussian conditioning of two components, and its limits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from simshuffle.job.uncertainty.kinship import (
    LEARNED,
    Kinship,
    condition_errors,
    expected_size_factor,
)

MACHINE, SERIES, CHANCE = 0.04, 0.03, 0.02
"""Variances of errors of 0.09 in all: of the machine, of the number of ranks, of chance."""


def covariances(num_measured, shared_by_scale=0.0, chance=CHANCE):
    """Of a run on 64 ranks and n runs on 8, which share a part of the second component."""
    out = np.full((num_measured + 1, num_measured + 1), MACHINE + SERIES)
    out[0, 1:] = out[1:, 0] = MACHINE + shared_by_scale
    return out + chance * np.eye(num_measured + 1)


def condition(errors, covariance=None, mean=0.0, freedom=np.inf, fitted=None):
    count = len(errors)
    covariance = covariances(count) if covariance is None else covariance
    means = np.full(count + 1, mean)
    return condition_errors(means, covariance, np.array(errors, float), freedom, fitted)


def test_two_components_and_one_run_at_another_scale():
    """The runs share 0.04 of 0.09: an error of 0.18 moves the other by 0.04 / 0.09 of it = 0.08,
    and leaves 0.09 - 0.04^2 / 0.09 of its variance."""
    found = condition([0.18])
    assert found.mean == pytest.approx([0.08])
    assert found.covariance.item() == pytest.approx(0.09 - 0.04**2 / 0.09)


def test_only_what_differs_from_the_expected_error_counts():
    assert condition([0.18], mean=0.18).mean == pytest.approx([0.18])
    assert condition([0.36], mean=0.18).mean == pytest.approx([0.18 + 0.08])


def test_without_measured_runs_nothing_changes():
    covariance = covariances(0)
    found = condition_errors(np.array([0.1]), covariance, np.empty(0), 3.0)
    assert found.mean.item() == 0.1 and found.covariance.item() == covariance.item()


def test_many_equal_runs_leave_the_part_of_the_scale_alone():
    """Their mean is machine + series of 8 ranks, exactly. Where the run on 64 ranks has nothing of
    its own but chance, it moves by the whole mean error, and only chance is left."""
    found = condition([0.3] * 2000, covariances(2000, SERIES))
    assert found.mean == pytest.approx([0.3], rel=1e-3)
    assert found.covariance.item() == pytest.approx(CHANCE, rel=1e-3)
    apart = condition([0.3] * 2000)  # of 0.07 the runs on 8 and 64 ranks share 0.04
    assert apart.mean == pytest.approx([0.3 * 4 / 7], rel=1e-3)
    assert apart.covariance.item() == pytest.approx(0.09 - 0.04**2 / 0.07, rel=1e-3)


def test_runs_without_chance_may_be_equal():
    found = condition([0.3, 0.3], covariances(2, SERIES, chance=0.0))
    assert found.mean == pytest.approx([0.3]) and found.covariance.item() == pytest.approx(0.0)


def test_correlations_fall_with_the_doublings_of_the_ranks():
    kinship = Kinship(machine=0.2, series=0.5, doublings=3.0, freedom=3.0)
    found = kinship.correlations(np.array([8.0, 64.0, 8.0]), ["a", "a", "b"])
    far = 0.2 + 0.5 * np.exp(-1.0)
    assert found == pytest.approx(np.array([[1, far, 0.2], [far, 1, 0.2], [0.2, 0.2, 1]]))


def test_small_errors_say_that_errors_are_small():
    """Two independent runs of variance 1 and errors 0, 1 degree of freedom: t of 3 degrees and
    scale (1 + 0) / 3. Its 95 % quantile is 2.353; that of 1 degree is 6.314."""
    covariance = np.eye(3)
    found = condition([0.0, 0.0], covariance, freedom=1.0)
    assert found.mean == pytest.approx([0.0])
    assert found.deviation == pytest.approx([2.353363 / 6.313752 / 3**0.5], rel=1e-5)
    fitted = condition([0.0, 0.0], covariance, freedom=1.0, fitted=np.array([True, True]))
    assert fitted.deviation == pytest.approx([1.0])


def test_the_size_of_errors_by_hand():
    """One run at twice its deviation, 3 degrees: in units in which 90 % ends are equal the distance
    is 2 t / 1.645; t of 4 degrees, scale (3 + distance^2) / 4."""
    before, after = stats.t.ppf(0.95, [3, 4])
    distance = 0.5 * before / stats.norm.ppf(0.95)
    expected = after / before * ((3 + distance**2) / 4) ** 0.5
    found = condition([0.5], np.eye(2), freedom=3.0)
    assert found.deviation == pytest.approx([expected])


def test_a_surprising_run_never_makes_an_interval_wider_than_without_it():
    assert condition([9.0], np.eye(2), freedom=3.0).deviation == pytest.approx([1.0])


errors_of_runs = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from("ab"), st.floats(-1, 1)), min_size=1, max_size=6
)


def posterior(runs, freedom=LEARNED.freedom, deviation=0.3, mean=0.05):
    ranks = 2.0 ** np.array([13, 13, *(run[0] for run in runs)])
    series = ["a", "b", *(run[1] for run in runs)]
    covariance = LEARNED.correlations(ranks, series) * deviation**2
    means = np.full(len(ranks), mean)
    return condition_errors(means, covariance, np.array([run[2] for run in runs]), freedom)


@settings(deadline=None, max_examples=50)
@given(errors_of_runs, st.sampled_from([1.0, 3.0, np.inf]))
def test_no_interval_grows(runs, freedom):
    assert (posterior(runs, freedom).deviation <= 0.3 * (1 + 1e-9)).all()


@settings(deadline=None, max_examples=50)
@given(errors_of_runs)
def test_of_a_known_size_every_further_run_narrows(runs):
    fewer, more = posterior(runs[:-1], np.inf), posterior(runs, np.inf)
    assert (more.deviation <= fewer.deviation * (1 + 1e-9)).all()


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_the_order_of_the_runs_does_not_matter(data):
    runs = data.draw(errors_of_runs)
    shuffled = data.draw(st.permutations(runs))
    first, second = posterior(runs), posterior(shuffled)
    assert first.mean == pytest.approx(second.mean, abs=1e-9)
    assert first.covariance == pytest.approx(second.covariance, abs=1e-9)


@settings(deadline=None, max_examples=50)
@given(errors_of_runs)
def test_larger_errors_of_the_law_scale_with_the_measured_ones(runs):
    doubled = [(ranks, name, 2 * error) for ranks, name, error in runs]
    once, twice = posterior(runs), posterior(doubled, deviation=0.6, mean=0.1)
    assert twice.mean == pytest.approx(2 * once.mean, abs=1e-9)
    assert twice.deviation == pytest.approx(2 * once.deviation, abs=1e-9)


def test_one_more_run_of_median_error_makes_errors_smaller():
    """Of t with 3 degrees: the median of F(1, 3) is 0.585, the 95 % quantiles 2.353 and 2.132."""
    expected = (2.131847 / 2.353363) ** 2 * (3 + 0.585401) / 4
    assert expected_size_factor(3.0, 0) == pytest.approx(expected, rel=1e-4)
    assert expected_size_factor(1.0, 2) == pytest.approx(expected, rel=1e-4)
    assert expected_size_factor(3.0, 0) < expected_size_factor(3.0, 20) < 1
