"""Divided training on ABCI: what was measured and projected, the fits, and the page that compares
both. Closed forms alone."""

import csv
import io
import re
import runpy
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from simshuffle import validate
from simshuffle.errors import InputError
from simshuffle.extensions.calibration.validation.answers import (
    PARTS,
    IterationParts,
    iteration_parts,
    load_with_values,
)
from simshuffle.extensions.calibration.validation.predict import MAX_TRAFFIC, traffic_share
from simshuffle.extensions.calibration.validation.table import parse_assignments, read_rows
from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.spec.library import shipped_folder

ROOT = Path(__file__).parent.parent.parent
sys.path.append(str(ROOT / "benchmarks"))

from paradl import (  # noqa: E402
    REPORTED,
    accuracy,
    by_strategy,
    markdown_means,
    markdown_points,
    points,
    published,
)

SETS = ["parallelism", "parallelism_data", "parallelism_log"]
SCENARIO = "validation/hybrid-abci-2020"
EVERY = [row for row in read_rows(shipped_folder("validation")) if row.set in SETS]
ROWS = [row for row in EVERY if row.kind != "run"]
LINES = {(line.case, line.quantity): line for line in published()}


@pytest.fixture(scope="module")
def results():
    return validate(only=SETS, processes=1, progress=False).tables["validation"]


@pytest.fixture(scope="module")
def fitting():
    return runpy.run_path(str(ROOT / "benchmarks" / "fit_parallelism.py"))


@pytest.fixture(scope="module")
def every(fitting):
    return fitting["fits"]()


# -------------------------------------------------------------------------------- what was measured


def test_every_number_is_there_once_and_says_where_it_is_from():
    lines = published()
    assert len({(line.case, line.part) for line in lines}) == len(lines)
    assert all(line.source and (line.measured or line.paradl) for line in lines)
    assert all(line.low <= line.measured <= line.high for line in lines if line.low)


def test_parts_add_up_but_for_those_that_are_known_not_to():
    odd = []
    for line in published():
        if line.part != "total" or line.strategy == "data":
            continue
        parts = [LINES[line.case, part].measured for part in ("compute", "communication")]
        if abs(sum(parts) - line.measured) > 12:  # of rounding
            odd.append((line.model, line.strategy, line.gpus))
    assert odd == [("resnet50", "filter", 64)]


def test_what_was_measured_of_data_parallelism_is_what_stands_in_its_own_rows():
    own = {
        row.case: row.measured
        for row in read_rows(shipped_folder("validation"))
        if row.set in {"abci_2020", "abci_2020_files"} and row.quantity == "steady epoch"
    }
    found = [
        (line.measured, own[f"{line.case.split(', ')[0]}, {line.gpus} GPUs"])
        for line in published()
        if line.strategy == "data" and line.measured and not line.remark.startswith("the first")
    ]
    assert len(found) > 20
    assert all(a == pytest.approx(b) for a, b in found)


def test_every_measured_number_is_a_row():
    rows = {(row.case, row.quantity): row for row in ROWS}
    measured = {key: line for key, line in LINES.items() if line.measured is not None}
    assert rows.keys() == measured.keys()
    for key, line in measured.items():
        row = rows[key]
        assert (row.set, row.source) == (line.set, line.source)
        assert row.measured == pytest.approx(line.measured, rel=1e-5)


# ----------------------------------------------------------------------------------------- the fits


def test_shipped_fits_are_what_the_script_gives(fitting, every):
    text = (ROOT / "validation" / "parallelism-2021.yaml").read_text()
    assert text == fitting["fits_text"](every)


def test_shipped_rows_are_what_the_script_gives(fitting, every):
    shown = (ROOT / "validation" / "parallelism.csv").read_text()
    assert list(csv.DictReader(io.StringIO(shown))) == list(fitting["rows"](every))


def test_nothing_is_fitted_on_a_predicted_row(every):
    by = {(fit.model, fit.strategy): fit for fit in every}
    for row in ROWS:
        line = LINES[row.case, row.quantity]
        if line.strategy == "data":
            continue
        fit = by[line.model, line.strategy]
        assert len(fit.parameters) <= 2 + bool(fit.logged_gpus)
        if line.set == "parallelism_log":
            is_smallest = line.model == "resnet50" and line.gpus in (8, 16)
            assert row.use == ("fit" if is_smallest else "predict")
            assert is_smallest == (line.gpus in fit.logged_gpus)
            continue
        same = (line.set, line.model, line.strategy)
        sizes = sorted({x.gpus for x in published() if (x.set, x.model, x.strategy) == same})
        assert list(fit.gpus) == sizes[: 2 if len(sizes) > 2 else 1]
        assert row.use in ({"fit"} if line.gpus in fit.gpus else {"predict", "none"})


def test_fits_come_out_on_what_they_were_fitted_on(every):
    written = yaml.safe_load((ROOT / "validation" / "parallelism-2021.yaml").read_text())["fits"]
    assert len(written) == len(every) == 8
    for fit in written:
        assert max(map(abs, fit["residuals"].values())) < 0.07
        for name in ("compute_factor", "repeated", "bus_bandwidth", "input_bandwidth"):
            if name in fit:
                low, value, high = (
                    float(str(fit[name][end]).split()[0]) for end in ("low", "value", "high")
                )
                assert 0 < low <= value <= high


def test_the_scenario_has_what_was_fitted_of_its_own_strategy(every):
    own = load_scenario(SCENARIO).workload.parallelism
    (fit,) = (fit for fit in every if (fit.model, fit.strategy) == ("resnet50", "spatial+data"))
    assert own.compute_factor == fit.parameters["compute_factor"].value
    for name in ("bus_bandwidth", "input_bandwidth"):
        assert getattr(own, name) == pytest.approx(fit.parameters[name].value, rel=1e-3)
    assert own.group_sum


# -------------------------------------------------------------------------------------- predictions


def test_the_quantities_of_an_iteration():
    parts = IterationParts(iterations=10, compute=2.0, communication=1.0, handed=0.5, read=4.0)
    seconds = {name: parts.quantity(name) for name in PARTS}
    assert seconds == {
        "compute": 20,
        "communication": 10,
        "compute and communication": 30,
        "epoch": 40,  # as long as reading
        "iteration": 3,
        "iteration with input": 4,
    }
    quick = IterationParts(10, 2.0, 1.0, 0.5, 1.0)
    assert quick.quantity("iteration with input") == 3.5
    with pytest.raises(InputError, match="compute and communication"):
        quick.quantity("speed")


def test_spatial_parallelism_in_proportion_to_its_factor_and_bandwidth():
    """A quarter of the images' rows on each GPU, and the update; half the bandwidth takes twice as
    long for all but gradients and waiting."""

    def parts(factor, bandwidth):
        way = f"spatial:ways=4,compute_factor={factor},bus_bandwidth={bandwidth} GB/s"
        return iteration_parts(SCENARIO, {"world_size": "32", "workload.parallelism": way})

    one, two, half = parts(1, 1), parts(2, 1), parts(1, 0.5)
    update = 0.7951e-3
    assert two.compute - update == pytest.approx(2 * (one.compute - update), rel=1e-2)
    assert one.compute == pytest.approx(256 * 2.8603e-3 / 4 + update, rel=0.1)
    assert half.handed == pytest.approx(2 * one.handed, rel=1e-3)
    assert half.communication - one.communication == pytest.approx(one.communication, rel=0.15)
    assert one.iterations == pytest.approx(1281167 / (8 * 256))


def test_one_process_of_a_host_hands_on_its_images_and_a_host_sums_before_all_do():
    """ChainerMN: all 256 images of 602,112 B come to each GPU, 104.9 ms at 1.47 GB/s. ChainerMNx:
    four GPUs sum 102.2 MB, six quarters of it over NVLink at 23.2 GB/s, and six steps of 3.4 us,
    6.63 ms. Nothing else changes."""
    plain = "spatial:ways=4,compute_factor=0.522,bus_bandwidth=0.53 GB/s"
    before, after = (
        iteration_parts(SCENARIO, {"world_size": "32", "workload.parallelism": plain + more})
        for more in ("", ",input_bandwidth=1.47 GB/s,group_sum=true")
    )
    assert after.handed == pytest.approx(104.86e-3, rel=1e-3)
    assert after.communication - before.communication == pytest.approx(6.63e-3, rel=2e-3)
    assert (after.compute, after.read) == (before.compute, before.read)


def test_data_parallelism_is_what_a_run_of_it_takes():
    """Against the run of abci-chainer-2020 in docs/reference/validation.md: 298 s."""
    of = "world_size=64;workload.model=vgg16;workload.local_batch_size=32;workload.parallelism=data"
    assert iteration_parts(SCENARIO, parse_assignments(of)).quantity("epoch") == pytest.approx(
        297.9, rel=2e-3
    )


@pytest.mark.parametrize("gpus", [512, 1024])
def test_scales_beyond_those_measured_are_predicted(gpus):
    parts = iteration_parts(SCENARIO, {"world_size": str(gpus)})
    assert parts.quantity("iteration") == pytest.approx(0.77, rel=0.05)
    assert parts.iterations == pytest.approx(1281167 / (gpus * 64))


def test_the_traffic_of_others_lengthens_communication_above_one_rack():
    rows = {
        (LINES[row.case, row.quantity].gpus, row.quantity): traffic_share(row)
        for row in ROWS
        if row.set == "parallelism" and row.case.startswith("ResNet-50, spatial")
    }
    assert rows[256, "communication"] == rows[256, "compute and communication"] == MAX_TRAFFIC
    assert rows[256, "compute"] == rows[128, "communication"] == 0


def test_the_logs_on_which_nothing_was_fitted_are_predicted_within_a_tenth(results):
    part = results[results["set"] == "parallelism_log"]
    assert len(part) == 14
    predicted = part[part["use"] == "predict"]
    assert len(predicted) == 9
    assert predicted["error"].abs().max() < 0.1
    resnet = predicted["case"].str.startswith("ResNet-50")
    assert resnet.sum() == 5 and predicted["error"][resnet].abs().max() < 0.03
    assert part["error"][part["use"] == "fit"].abs().max() < 0.006


def test_a_run_takes_what_the_closed_form_says(results):
    part = results[results["set"] == "parallelism_log"].set_index(["case", "kind"])["predicted"]
    runs = [case for case, kind in part.index if kind == "run"]
    assert len(runs) == 2
    for case in runs:
        line = LINES[case, "iteration with input"]
        samples = line.gpus / line.ways * line.group_batch
        assert samples / part[case, "run"] == pytest.approx(part[case, "oracle"], rel=0.01)


# ----------------------------------------------------------------------------------- against ParaDL


def test_accuracy_is_that_of_the_report():
    assert accuracy(8.0, 10.0) == accuracy(12.0, 10.0) == pytest.approx(0.8)
    assert accuracy(25.0, 10.0) == pytest.approx(-0.5)


def test_the_means_leave_fitted_points_out():
    table = pd.DataFrame(
        {
            "model": ["resnet50"] * 4,
            "strategy": ["channel"] * 3 + ["data"],
            "use": ["fit", "predict", "predict", "predict"],
            "ours": [1.0, 0.8, 0.6, 0.1],
            "theirs": [0.5, 0.9, 0.7, 0.2],
        }
    )
    own, _, divided, whole = by_strategy(table).to_dict("records")
    assert (own["predicted"], own["ours"], own["theirs"]) == (2, pytest.approx(0.7), 0.8)
    assert (own["points"], own["ours_all"]) == (3, pytest.approx(0.8))
    assert own["theirs_all"] == pytest.approx(0.7)
    assert own["reported"] == REPORTED["resnet50", "channel"] == 0.75
    assert (divided["strategy"], divided["ours"]) == ("all but data", pytest.approx(0.7))
    assert (whole["strategy"], whole["ours"]) == ("all", pytest.approx(0.5))


def test_the_page_shows_what_comes_out(results):
    table = points(results)
    page = (ROOT / "docs" / "reference" / "validation-parallelism.md").read_text()
    for name, expected in (
        ("against means", markdown_means(table)),
        ("against points", markdown_points(table)),
    ):
        (shown,) = re.findall(rf"<!-- {name} -->\n\n(.*?)\n\n<!-- end -->", page, re.DOTALL)
        assert shown == expected


def test_the_page_names_what_was_fitted(every):
    page = (ROOT / "docs" / "oracle.md").read_text()
    for fit in every:
        for value in fit.parameters.values():
            number = value.value if value.value < 100 else value.value / 1e9
            assert f"{number:.3g}" in page, (fit.model, fit.strategy)


def test_every_row_has_values_of_its_scenario():
    for row in ROWS:
        if row.use != "none":
            assert row.scenario == SCENARIO
            gpus = LINES[row.case, row.quantity].gpus
            assert load_with_values(SCENARIO, parse_assignments(row.values)).world_size == gpus
