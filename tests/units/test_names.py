"""Names of runs, as short as tells them apart."""

from simshuffle.results.names import where_of, without_schedule

RUNS = ["local @8", "partial-0.1 new @8", "local @64", "partial-0.1 new @64"]


def test_a_schedule_that_all_exchanges_have_is_left_out():
    assert without_schedule(RUNS) == ["local @8", "partial-0.1 @8", "local @64", "partial-0.1 @64"]
    both = ["partial-0.1 new @8", "partial-0.1 old @8"]
    assert without_schedule(both) == both
    assert without_schedule(["local x=3 @8", "local @8"]) == ["local x=3 @8", "local @8"]


def test_runs_on_as_many_ranks_are_not_listed():
    assert where_of(RUNS, RUNS) == ""
    assert where_of(RUNS[:2], RUNS) == "on 8 ranks"
    assert where_of(RUNS[1:3], RUNS) == "partial-0.1 new @8, local @64"
