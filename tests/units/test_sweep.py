"""What is asked of a sweep, before anything is simulated."""

import pytest

from simshuffle.errors import InputError
from simshuffle.studies.simulation import sweep
from simshuffle.studies.simulation.tables import measure_name
from simshuffle.studies.simulation.verb import SweepOptions
from simshuffle.study import engine
from tests.drawn import laid_out
from tests.small import small

PARTIAL = {"kind": "partial_local_shuffle", "exchange_fraction": 0.1}


def asked(**options):
    return sweep.request(SweepOptions(scenario=small(), **options))


def test_values_of_one_name_are_refused_and_the_remedy_is_text():
    """Two mappings of one kind have the same name, so that the rows of one would be lost."""
    authors = {**PARTIAL, "schedule": "authors"}
    with pytest.raises(InputError, match=r"value 2 has the same name as.*Write records as text"):
        asked(over={"workload.exchange": [PARTIAL, authors]})


def test_any_two_schedules_stand_side_by_side_under_their_names():
    exchanges = [
        f"partial_local_shuffle:exchange_fraction=0.1{of}" for of in ("", ",schedule=authors")
    ]
    request = asked(over={"workload.exchange": exchanges}, seeds=2)
    cells = cells_of(request)
    assert [cell.scenario.label() for cell in cells.values()] == [
        *["partial-0.1 streamlined @8"] * 2,
        *["partial-0.1 authors @8"] * 2,
    ]
    assert [cell.scenario.seed for cell in cells.values()] == [1, 2] * 2


def test_a_value_that_is_given_twice_is_no_other_value():
    request = asked(over={"world_size": [2, 2, 4]})
    assert len(cells_of(request)) == 2


@pytest.mark.parametrize("given", [small(), "quickstart"])
def test_what_a_kind_requires_may_come_by_the_axis_alone(given):
    key = "workload.exchange.exchange_fraction"
    options = SweepOptions(
        scenario=given, set={"workload.exchange": "partial_local_shuffle"}, over={key: [0.3, 0.1]}
    )
    request = sweep.request(options)
    exchanges = [cell.scenario.workload.exchange for cell in cells_of(request).values()]
    assert [(of.kind, of.fraction) for of in exchanges] == [
        ("partial_local_shuffle", 0.3),
        ("partial_local_shuffle", 0.1),
    ]


def cells_of(request):
    return sweep.STUDY.stages[0](request.values, {})


def test_the_measure_of_the_figure_is_a_column_or_one_over_a_number_of_something():
    request = asked(over={"world_size": [2, 4]}, measure="epoch_s/iterations")
    result = engine.run(sweep.STUDY, request)
    chart = result.study.figures(result)["sweep"]
    last = result.tables["sweep"].groupby("world_size").last()
    drawn = laid_out(chart).axes[0].lines[0].get_ydata()
    assert drawn == pytest.approx((last["epoch_s"] / last["iterations"]).to_numpy())
    assert measure_name("allreduce_exposed_s/iterations") == "allreduce exposed per iteration (s)"
    assert measure_name("samples_per_s/world_size") == "samples per GPU (1/s)"
