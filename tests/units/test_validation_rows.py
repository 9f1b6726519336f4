"""The measured values of machines, collectives, storage and slides in validation/: complete, and
about scenarios that load."""

import csv
import math
import re
from functools import partial

import pytest

from simshuffle.errors import InputError
from simshuffle.extensions.calibration.validation import answers, emulation
from simshuffle.extensions.calibration.validation.answers import load_with_values
from simshuffle.extensions.calibration.validation.table import (
    parse_assignments,
    read_rows,
    spread_ends,
)
from simshuffle.spec.library import shipped_folder

SETS = (
    *("collectives", "cosmoflow", "deepcam", "frameworks", "mlperf_storage", "mlperf_storage_v3"),
    *("resnet50", "slides", "storage"),
)
PSEUDO = {
    "allreduce": {"nbytes"},
    "read": {"clients", "tasks", "file_size"},
    "emulated": {"hosts", "accelerators", "share"},
}
PREDICT = {
    "allreduce": answers.measure_allreduce,
    "read": answers.measure_reads,
    "emulated": emulation.emulate_accelerators,
}
FITTED = re.compile(r"\b(?:cluster|workload)\.[a-z0-9_.-]*[a-z0-9]")
UNITS = {
    "throughput": "1/s",
    "staging": "s",
    "time": "s",
    "bus bandwidth": "B/s",
    "read bandwidth": "B/s",
    "file rate": "1/s",
    "utilisation": "1",
    "largest count": "1",
}


ROWS = [row for row in read_rows(shipped_folder("validation")) if row.set in SETS]
SIMULATED = [row for row in ROWS if row.use != "none"]


def resolved(row, side=""):
    """The scenario of a row, without the keys that are not the scenario's."""
    values = {
        key: value
        for key, value in parse_assignments(side or row.values).items()
        if key not in PSEUDO.get(row.kind, ())
    }
    return load_with_values(row.scenario, values)


def ident(row):
    return f"{row.set}: {row.case}, {row.quantity}"


@pytest.mark.parametrize("name", SETS)
def test_a_set_has_no_row_twice(name):
    rows = [row for row in ROWS if row.set == name]
    assert rows
    assert len({(row.case, row.quantity) for row in rows}) == len(rows)


@pytest.mark.parametrize("row", ROWS, ids=ident)
def test_a_row_is_complete(row):
    assert row.case and row.quantity and row.unit and row.source
    assert row.low is None or row.high is None or row.low <= row.measured <= row.high
    if row.use == "none":
        assert len(row.reason) > 20, "says why not"
    else:
        assert row.scenario and row.measured is not None
        assert row.unit == ("1" if row.quantity.endswith(" ratio") else UNITS[row.quantity])


@pytest.mark.parametrize("row", SIMULATED, ids=ident)
def test_the_scenario_of_a_row_loads(row):
    sides = row.values.split("|")
    assert len(sides) == (2 if row.kind == "ratio" else 1)
    for more in ["", *spread_ends(row.spread)]:
        for side in sides:
            resolved(row, ";".join(filter(None, (side, more))))


@pytest.mark.parametrize("row", [row for row in SIMULATED if row.use == "fit"], ids=ident)
def test_a_fitted_row_names_a_parameter_of_its_scenario(row):
    names = FITTED.findall(row.reason)
    assert names
    at = resolved(row).to_dict()
    for part in names[0].split("."):
        assert part in at, names[0]
        at = at[part]


def test_every_set_has_predicted_rows_and_every_fit_predicts_something():
    fits = {(row.set, row.scenario) for row in SIMULATED if row.use == "fit"}
    predictions = {(row.set, row.scenario) for row in SIMULATED if row.use == "predict"}
    assert {name for name, _ in predictions} == set(SETS)
    assert fits <= predictions


QUICK = [
    row
    for row in SIMULATED
    if row.kind in PSEUDO
    and (row.kind != "emulated" or (row.use == "fit" and "U-Net3D, HPE" in row.case))
]


@pytest.mark.parametrize("row", QUICK, ids=ident)
def test_collectives_and_reads_are_predicted_as_they_were_fitted(row):
    value = PREDICT[row.kind](row.scenario, parse_assignments(row.values), row.quantity)
    assert math.isfinite(value) and value > 0
    if row.use == "fit":
        assert value == pytest.approx(row.measured, rel=2e-3 if row.kind == "emulated" else 1e-3)


MLPERF = [row for row in SIMULATED if row.set == "mlperf_storage"]
RATES = {
    ("unet3d", "h100"): 7 / 0.323,
    ("unet3d", "a100"): 7 / 0.636,
    ("resnet50", "h100"): 400 / 0.224,
    ("resnet50", "a100"): 400 / 0.435,
    ("cosmoflow", "h100"): 1 / 0.0035,
    ("cosmoflow", "a100"): 1 / 0.00551,
}
"""Samples/s of an accelerator that only pauses: of runs that do not say what they emulate."""


def emulates(run, workload, accelerator):
    if run["workload"] in (workload, "?") and run["accelerator"] in (accelerator, "?"):
        rate = float(run["samples_s"]) / int(run["accelerators"]) / float(run["au"]) * 100
        return rate == pytest.approx(RATES[workload, accelerator], rel=0.25)
    return False


def test_rows_of_mlperf_storage_are_those_of_the_submissions():
    path = shipped_folder("validation") / "data" / "mlperf_storage_v1.csv"
    with path.open(encoding="utf-8", newline="") as file:
        runs = list(csv.DictReader(file))
    assert len(runs) == 430
    for row in MLPERF:
        assert "Apache-2.0" in row.source
        values = parse_assignments(row.values)
        system = re.search(r"results/([^/;]+);", row.source)[1]
        accelerator = row.case.rpartition(" ")[2].lower()
        same = [
            run
            for run in runs
            if (run["system"], run["hosts"]) == (system, values["hosts"])
            and emulates(run, row.scenario.rpartition("-")[2], accelerator)
        ]
        slower = "workload.model.accelerators.emulated.forward" in values
        assert slower == (accelerator == "a100"), ident(row)
        if row.quantity == "largest count":
            assert row.measured == max(int(run["accelerators"]) for run in same), ident(row)
            continue
        same = [run for run in same if run["accelerators"] == values["accelerators"]]
        assert len(same) == 5, ident(row)
        share = row.quantity == "utilisation"
        measured = [float(run["au"]) / 100 if share else float(run["samples_s"]) for run in same]
        expected = sum(measured) / len(measured), min(measured), max(measured)
        assert (row.measured, row.low, row.high) == pytest.approx(expected, rel=1e-4), ident(row)


def test_a_largest_count_is_left_out_only_where_one_more_on_each_host_would_pass():
    """Of the slowest of its five runs, whatever is predicted."""
    with (shipped_folder("validation") / "data" / "mlperf_storage_v1.csv").open(
        encoding="utf-8"
    ) as file:
        runs = list(csv.DictReader(file))
    counts = [r for r in ROWS if (r.set, r.quantity) == ("mlperf_storage", "largest count")]
    left_out = 0
    for row in counts:
        label, rest = row.case.split(", ", 1)
        workload, accelerator = label.lower().replace("-", ""), rest.rpartition(" ")[2].lower()
        hosts = int(re.search(r"(\d+) hosts?,", rest)[1])
        system = re.search(r"results/([^/;]+);", row.source)[1]
        same = [
            float(run["au"]) / 100
            for run in runs
            if (run["system"], int(run["hosts"])) == (system, hosts)
            and int(run["accelerators"]) == row.measured
            and emulates(run, workload, accelerator)
        ]
        share = 0.7 if workload == "cosmoflow" else 0.9
        more = min(same) * row.measured / (row.measured + hosts)
        assert (row.use == "none") == (more >= share), ident(row)
        left_out += row.use == "none"
    assert (len(counts), left_out) == (55, 7)


def test_bandwidths_of_mlperf_storage_are_fitted_on_few_accelerators_that_wait():
    idle = {"unet3d": 0.9865, "resnet50": 0.9961, "cosmoflow": 0.8071}
    for row in (row for row in MLPERF if row.use == "fit"):
        values, workload = parse_assignments(row.values), row.scenario.rpartition("-")[2]
        assert int(values["accelerators"]) <= 64, ident(row)
        if values["accelerators"] == "1":
            assert row.measured == pytest.approx(idle[workload], abs=1e-4), ident(row)
            continue
        passing = 0.7 if workload == "cosmoflow" else 0.9
        assert row.measured < (passing + idle[workload]) / 2, ident(row)


# -------------------------------------------------------------------------------------- collectives

LINKS = {
    "world_size": "16",
    "workload.allreduce.ring_intra_host_latency": "1 us",
    "workload.allreduce.ring_inter_host_latency": "10 us",
}


def reduced(values, quantity):
    return answers.measure_allreduce("validation/allreduce-links", values, quantity)


def test_an_allreduce_over_two_hosts_takes_its_steps_and_its_bytes_over_the_cables():
    # 2 hosts of 8: of 30 steps 2 cross the network; 2 * 15/16 * 16 GB over 8 cables of 25 GB/s,
    # each with an eighth of the bytes; the plateau of large buffers is 1.4 on A100
    large = {**LINKS, "nbytes": "16 GB"}
    seconds = reduced(large, "time")
    assert seconds == pytest.approx(1.4 * (2 * 10e-6 + 28 * 1e-6) + 30e9 / 200e9)
    assert reduced(large, "bus bandwidth") == pytest.approx(30e9 / seconds)
    assert reduced(large, "algorithm bandwidth") == pytest.approx(16e9 / seconds)
    assert reduced({"world_size": "1", "nbytes": "1 GB"}, "time") == 0.0


def test_the_bus_bandwidth_of_the_library_caps_an_allreduce():
    capped = {**LINKS, "workload.allreduce.inter_host_bus_bandwidth": "10 GB/s", "nbytes": "16 GB"}
    assert reduced(capped, "time") == pytest.approx(1.4 * 48e-6 + 3.0)


# -------------------------------------------------------------------------------------------- reads

DISKS = "validation/io500-alpine"
FILE_SYSTEM = {
    "cluster.parallel_file_system": (
        "{read_bandwidth: 100 GB/s, open_rate: 40 k/s, latency: 1 ms, client_bandwidth: 5 GB/s, "
        "background_load: 0.5, link_bandwidth: 1 TB/s, link_latency: 26 ns, links_per_switch: 8}"
    )
}


@pytest.mark.parametrize(("clients", "expected"), [(1, 5e9), (8, 40e9), (10, 50e9), (1000, 50e9)])
def test_clients_read_at_their_own_rate_until_the_servers_bind(clients, expected):
    values = {**FILE_SYSTEM, "clients": str(clients)}
    assert answers.measure_reads(DISKS, values, "read bandwidth") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("tasks", "size", "expected"),
    [
        (5, "10 kB", 5e3),  # each waits 1 ms for a file
        (1000, "10 kB", 20e3),  # the servers open 40,000 files a second, half of them for others
        (1000, "10 MB", 500),  # one host reads 5 GB/s
    ],
)
def test_files_are_bound_by_latency_by_servers_or_by_bytes(tasks, size, expected):
    values = {**FILE_SYSTEM, "clients": "1", "tasks": str(tasks), "file_size": size}
    assert answers.measure_reads(DISKS, values, "file rate") == pytest.approx(expected)


# ---------------------------------------------------------------------------- emulated accelerators

UNET = "validation/mlperf-storage-unet3d"
emulated = partial(emulation.emulate_accelerators, UNET)
DEMAND = 7 / 0.323 * 146600628  # bytes/s of an accelerator that never waits


def reading(fed):
    """Values with which one host reads as much as ``fed`` accelerators ask for."""
    return {
        "cluster.parallel_file_system.client_bandwidth": f"{fed * DEMAND} B/s",
        "workload.dataset.sample_size.std": "0 B",
        "hosts": "1",
    }


@pytest.mark.parametrize(("share", "expected"), [(0.5, 0.5), (0.8, 0.8), (4.0, 1.0)])
def test_accelerators_pause_as_long_as_what_a_host_reads_lasts(share, expected):
    values = {**reading(share * 2), "accelerators": "2"}
    value = emulated(values, "utilisation")
    assert value == pytest.approx(expected, rel=0.01)
    if share == 0.5:  # samples/s of the bytes that the host reads
        value = emulated(values, "throughput")
        assert value == pytest.approx(DEMAND / 146600628, rel=0.01)


def test_a_part_of_many_hosts_stands_for_all():
    values = {
        "cluster.parallel_file_system.read_bandwidth": f"{90 * DEMAND} B/s",
        "workload.dataset.sample_size.std": "0 B",
    }
    # of 60 hosts with 3 accelerators 42 are simulated; the servers feed 90 of the 180
    assert emulation.utilisation(UNET, values, 60, 3) == pytest.approx(1 / 2, rel=0.02)


def test_the_largest_count_is_found_where_bandwidth_does_not_decide_it():
    # a step costs a third of a pause more, so that even one accelerator pauses for 3/4 of the time
    values = {**reading(4.4), "workload.model.accelerators.emulated.fixed": "107.7 ms"}
    assert emulated({**values, "share": "0.9"}, "largest count") == 0
    assert emulated({**values, "share": "0.7"}, "largest count") == 6


@pytest.mark.parametrize(
    ("guess", "border", "trials"),
    [
        (4, 11, [4, 5, 7, 11, 19, 15, 13, 12]),
        (6, 1, [6, 5, 3, 1, 2]),
        (2, 0, [2, 1]),
        (0, 1, [1, 2]),
    ],
)
def test_the_largest_count_is_searched_in_growing_steps(guess, border, trials, monkeypatch):
    tried = []

    def utilisation(_scenario, _values, _hosts, count):
        tried.append(count)
        return 0.9 if count <= border else 0.89

    monkeypatch.setattr(emulation, "bandwidth_bound_count", lambda *_: guess)
    monkeypatch.setattr(emulation, "utilisation", utilisation)
    assert emulation.largest_passing_count(UNET, {}, 1, 0.9) == border
    assert tried == trials


def test_the_largest_count_is_what_a_host_feeds_on_each_of_them():
    values = {**reading(5), "share": "0.9"}
    assert emulated(values, "largest count") == 5  # 5 / 6 of them would be 0.83
    assert emulated({**values, "hosts": "2"}, "largest count") == 10
    assert emulated({**values, "share": "0.8"}, "largest count") == 6
    # hosts that read 5/0.9; and servers that feed 12 in all, 6/0.7 on each of two hosts
    alone = {key: value for key, value in reading(5).items() if key != "hosts"}
    assert emulation.bandwidth_bound_count(UNET, alone, 2, 0.9) == 5
    servers = "cluster.parallel_file_system"
    shared = {f"{servers}.client_bandwidth": f"{100 * DEMAND} B/s"}
    shared[f"{servers}.read_bandwidth"] = f"{12 * DEMAND} B/s"
    assert emulation.bandwidth_bound_count(UNET, alone | shared, 2, 0.7) == 8


LARGEST, USED = "largest count", "utilisation"


@pytest.mark.parametrize(
    ("predict", "values", "quantity", "hint"),
    [
        (reduced, "", "time", "nbytes=16 MiB"),
        (reduced, "nbytes=16", "time", "nbytes=16 MiB"),
        (reduced, "nbytes=0 B", "time", "nbytes=16 MiB"),
        (reduced, "nbytes=ten MB", "time", "nbytes=16 MiB"),
        (reduced, "nbytes=1 MB", "speed", "bus bandwidth"),
        (partial(answers.measure_reads, DISKS), "", "read bandwidth", "clients=10"),
        (partial(answers.measure_reads, DISKS), "clients=0", "read bandwidth", "clients=10"),
        (partial(answers.measure_reads, DISKS), "clients=1", "file rate", "file_size=3901 B"),
        (partial(answers.measure_reads, DISKS), "clients=1", "speed", "read bandwidth, file rate"),
        (emulated, "hosts=1;accelerators=1", "speed", f"{USED}, throughput, {LARGEST}"),
        (emulated, "accelerators=1", USED, "hosts=2"),
        (emulated, "hosts=1", USED, "accelerators=2"),
        (emulated, "hosts=2;accelerators=3", USED, "equally many accelerators on each of 2 hosts"),
        (emulated, "hosts=1;share=1.5", LARGEST, "share=0.9"),
        (emulated, "hosts=1", LARGEST, "share=0.9"),
    ],
)
def test_what_is_missing_to_predict_is_said(predict, values, quantity, hint):
    with pytest.raises(InputError, match=hint):
        predict(parse_assignments(values), quantity)


SMALL_TORUS = {"cluster.topology.shape": "[2, 2, 2, 2, 2, 2]", "world_size": "64"}


@pytest.mark.parametrize(
    ("scenario", "values"),
    [("alltoall-fugaku", SMALL_TORUS), ("alltoall-marenostrum5", {})],
    ids=["dimension order", "adaptive"],
)
def test_the_routes_of_all_to_alls_are_kept_and_no_row_changes_them(scenario, values):
    """A row has one value, whichever rows come before: an adaptive router begins anew."""
    answers._kept_alltoalls.cache_clear()
    times = [
        answers.measure_alltoall(
            f"validation/{scenario}", {**values, "nbytes": "1 MiB", "algorithm": name}, "time"
        )
        for name in ("linear", "pairwise", "linear")
    ]
    assert times[0] == times[2] != times[1]
    assert answers._kept_alltoalls.cache_info()[:2] == (2, 1)
