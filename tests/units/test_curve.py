"""Curves of measured points."""

import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.spec.interpolation import BandwidthByCount, BandwidthBySize, Curve, FrequencyByCount
from simshuffle.spec.record import Spec


class Record(Spec):
    size: BandwidthBySize = Curve((0.0,), (1.0,), constant=True)
    clients: BandwidthByCount = Curve((0.0,), (1.0,), constant=True)
    depth: FrequencyByCount = Curve((0.0,), (1.0,), constant=True)


def curve(value: object) -> Curve:
    return Record.model_validate({"size": value}).size


def test_between_points_a_power_law_is_met_exactly():
    # y = 3 x^0.5 is straight in logarithms, so that two of its points give it everywhere between
    # them
    measured = curve({"points": {"100 B": "30 B/s", "10 kB": "300 B/s"}})
    assert measured(2500) == pytest.approx(3 * math.sqrt(2500), rel=1e-12)


def test_linear_between_points():
    measured = curve({"points": {"100 B": "30 B/s", "200 B": "50 B/s"}, "interpolation": "linear"})
    assert measured(125) == pytest.approx(35)


def test_outside_the_points_the_nearest_value_holds_and_is_known_as_not_measured():
    measured = Record.model_validate({"depth": {"points": {1: "12 k/s", 32: "300 k/s"}}}).depth
    assert [measured(0.5), measured(1), measured(32), measured(1000)] == [12e3, 12e3, 300e3, 300e3]
    assert [measured.covers(x) for x in (0.5, 1, 32, 33)] == [False, True, True, False]


def test_a_constant_is_the_same_everywhere():
    assert [curve("6.3 GB/s")(x) for x in (0, 1, 1e12)] == [6.3e9] * 3
    assert curve("6.3 GB/s").covers(0)


@given(
    st.dictionaries(
        st.floats(1, 1e12).map(lambda x: f"{x!r} B"),
        st.floats(1e-3, 1e12).map(lambda y: f"{y!r} B/s"),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(["log", "linear"]),
)
def test_a_curve_survives_writing_and_reading(points, interpolation):
    record = Record.model_validate({"size": {"points": points, "interpolation": interpolation}})
    assert Record.model_validate(record.model_dump()) == record
    for x, y in zip(record.size.x, record.size.y, strict=True):
        assert record.size(x) == pytest.approx(y, rel=1e-12)
    middle = math.sqrt(record.size.x[0] * record.size.x[-1])
    assert min(record.size.y) * (1 - 1e-9) <= record.size(middle) <= max(record.size.y) * (1 + 1e-9)


def test_a_scenario_with_a_curve_over_a_count_may_be_varied_and_written():
    points = {"points": {1: "512 MB/s", 8: "1 GB/s", 2.5: "600 MB/s"}}
    key = "cluster.parallel_file_system.client_bandwidth"
    scenario = load_scenario("quickstart", {key: points})
    other = scenario.with_values({"world_size": 8})
    assert other.cluster.parallel_file_system == scenario.cluster.parallel_file_system
    written = yaml.safe_load(scenario.to_yaml())["cluster"]["parallel_file_system"]
    assert written["client_bandwidth"]["interpolation"] == "log"
