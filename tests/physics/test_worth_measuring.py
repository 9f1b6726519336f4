"""Which measurement is worth making, by hand: an epoch of compute alone on 16 hosts with a GPU
each, so that runs on 4 ranks and on 1 can be made."""

import numpy as np
import pytest

from simshuffle.job.plan.bounds import bounds
from simshuffle.job.uncertainty.interval import estimate_intervals
from simshuffle.job.uncertainty.kinship import LEARNED, expected_size_factor
from simshuffle.job.uncertainty.narrowing import KinRun, narrow_intervals
from simshuffle.job.uncertainty.worth import candidate_runs, half_width, worth_measuring
from simshuffle.report import intervals
from tests.physics.test_narrowing import ALONE, FORWARD
from tests.small import small

RUN = "local @16"


def scenario(ranks=16):
    return small(**ALONE, world_size=ranks)


def worth(kin=(), ranges=None, **ranks_of_run):
    runs = {name: scenario(ranks) for name, ranks in (ranks_of_run or {RUN: 16}).items()}
    pairs = {name: (run, bounds(run).epoch) for name, run in runs.items()}
    uncertain = narrow_intervals(estimate_intervals(pairs, ranges or {}), runs, kin, ranges or {})
    commands = {found.key: "a few epochs on 1 and 2 GPUs" for found in uncertain.inputs}
    return uncertain, worth_measuring(uncertain, runs, kin, ranges or {}, commands)


def test_a_run_on_a_quarter_of_the_ranks_by_hand():
    """Two doublings apart: errors of laws correlate by 0.20 + 0.69 exp(-2 / 8.3). Half the interval
    shrinks by the root of 1 - r^2, where r is what is left of that beside chance, and by what one
    more error says of the size of errors."""
    uncertain, found = worth()
    four = scenario(4)
    (measurement,) = [row for row in found["measurements"] if "@4" in row["what"]]
    draws = uncertain.draws[RUN]
    other = estimate_intervals({"four": (four, 1.0)}, {}).draws["four"]
    logs = np.log([draws.model, other.model])
    chance = draws.chance_deviation**2
    shared = np.cov(logs)[0, 1] * (0.20 + 0.69 * np.exp(-2 / 8.3))
    variances = logs.var(axis=1, ddof=1) + chance
    left = (1 - shared**2 / variances.prod()) ** 0.5
    size = expected_size_factor(LEARNED.freedom, 0) ** 0.5
    assert found["run"] == RUN and found["now"] == half_width(uncertain.intervals[RUN])
    assert measurement["what"] == "run local @4 for 2 epochs (--measured)"
    assert measurement["then"] == pytest.approx(found["now"] * left * size, rel=0.02)
    assert measurement["host_hours"] == pytest.approx(4 * 2 * bounds(four).epoch / 3600)


def test_measuring_an_unknown_input_counts_and_the_cheapest_comes_first():
    _, found = worth(ranges={FORWARD: (0.2e-3, 9e-3)})
    by_words = {row["what"].split(" ")[0]: row for row in found["measurements"]}
    assert by_words["measure"]["host_hours"] == pytest.approx(1 / 6)
    assert by_words["measure"]["then"] < 0.7 * found["now"]
    costs = [row["host_hours"] for row in found["measurements"]]
    assert costs == sorted(costs)


def test_a_measured_run_is_not_proposed_again_and_the_next_narrows_less():
    _, before = worth()
    four = scenario(4)
    seconds = bounds(four).epoch
    uncertain, after = worth([KinRun("local @4", four, seconds, 1.05 * seconds)])
    assert after["now"] < before["now"]
    assert "local @4" not in str(after["measurements"])
    assert half_width(uncertain.intervals[RUN]) == after["now"]


def test_runs_to_make_fill_hosts_and_are_on_fewer_ranks():
    names = [run.name for run in candidate_runs("local @16", scenario(16), {"local @4"})]
    assert names == ["local @1"]
    on_hosts = small(**ALONE, world_size=32, cluster__host__gpus=4)
    assert [run.scenario.world_size for run in candidate_runs("a", on_hosts, set())] == [8]
    assert candidate_runs("local @1", scenario(1), set()) == []


def test_of_several_runs_the_one_on_the_most_ranks_counts():
    _, found = worth(few=8, many=16)
    assert found["run"] == "many"


def test_the_table_of_what_is_worth_measuring():
    stored = {"worth": {"run": RUN, "now": 0.6, "measurements": []}}
    assert intervals.worth_table({}) is None and intervals.worth_table(stored) is None
    row = {"what": "run a @4", "host_hours": 0.25, "then": 0.151}
    stored["worth"]["measurements"].append(row)
    table = intervals.worth_table(stored)
    assert table.title == "What narrows local @16, now ±60 %"
    assert [list(column.cells) for column in table.columns] == [["run a @4"], ["0.25"], ["±15 %"]]
