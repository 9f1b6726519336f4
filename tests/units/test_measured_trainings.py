"""Recorded trainings as measured runs: folders of doctor and epoch logs, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from simshuffle.errors import InputError
from simshuffle.extensions.doctor.records.reading import RECORD
from simshuffle.extensions.doctor.records.record import Record, make_rows
from simshuffle.job.scenario import measured
from simshuffle.job.scenario.measured import MeasuredEpoch, match_measured, read_measured
from simshuffle.job.scenario.scenario import all_runs
from simshuffle.study.extension import Extension
from tests.small import small

DATA = Path(__file__).parents[1] / "data"
LOADER = {"batch_size": 10, "num_workers": 2, "samples": 160}


def write_record(folder, epochs=2, ranks=1, device="cpu", collectives=True):
    """Write the record of four batches an epoch: a wait of 1 s (5 s in the first epoch, and 3 s at
    the first batch of each), a step of 2 s with 0.25 s of updates and 0.5 s of collectives."""
    rows = []
    for rank in range(ranks):
        clock = 0.0
        for epoch, batch in np.ndindex(epochs, 4):
            wait_s = 3.0 if batch == 0 else 5.0 if epoch == 0 and epochs > 1 else 1.0
            key = {"rank": rank, "epoch": epoch, "batch": batch}
            rows.append({**key, "operation": "wait", "start_s": clock, "seconds": wait_s})
            clock += wait_s
            rows.append({**key, "operation": "step", "start_s": clock, "seconds": 2.0})
            parts = {"optimizer": 0.25} | ({"allreduce": 0.5} if collectives else {})
            for part, seconds in parts.items():
                loose = {"rank": rank, "epoch": epoch, "batch": -1, "operation": part}
                rows.append({**loose, "start_s": clock + 1.0, "seconds": seconds})
            clock += 2.0
    table = make_rows({name: [row[name] for row in rows] for name in rows[0]})
    about = {"made_by": "simshuffle", "loaders": [LOADER], "device": device, "ranks": ranks}
    folder.mkdir()
    Record(table, about, "").write(folder / RECORD)
    return folder


def test_a_record_is_the_sum_of_its_warm_epochs(tmp_path):
    """The second epoch: waits of 3 + 3 x 1 s, four steps of 2 s."""
    (row,) = read_measured(write_record(tmp_path / "one", collectives=False))
    assert row == {
        "world_size": 1,
        "epoch_s": 14.0,
        "iterations": 4,
        "parts": {"I/O": 6.0, "FW+BW": 7.0, "GE+WU": 1.0},
        "values": {
            "workload.local_batch_size": 10,
            "workload.dataset.num_samples": 160,
            "workload.loader.workers": 2,
        },
        "source": "one",
    }


def test_of_a_single_epoch_the_first_batch_is_left_out(tmp_path):
    (row,) = read_measured(write_record(tmp_path / "one", epochs=1, collectives=False))
    assert (row["epoch_s"], row["iterations"], row["parts"]["I/O"]) == (9.0, 3, 3.0)


def test_sums_of_gradients_are_a_part_where_a_process_waits_for_them(tmp_path):
    (on_cpu,) = read_measured(write_record(tmp_path / "cpu", ranks=2))
    assert on_cpu["parts"] == {"I/O": 6.0, "FW+BW": 5.0, "GE+WU": 3.0} and on_cpu["world_size"] == 2
    (on_gpu,) = read_measured(write_record(tmp_path / "gpu", ranks=2, device="cuda:0"))
    assert on_gpu["parts"] == {"I/O": 6.0} and on_gpu["epoch_s"] == 14.0
    (unseen,) = read_measured(write_record(tmp_path / "unseen", ranks=2, collectives=False))
    assert unseen["parts"] == {"I/O": 6.0}


def scenario(**values):
    return small(workload__dataset__num_samples=1600, epochs=2, world_size=8, **values)


def match(path, **values):
    rows = [MeasuredEpoch(**row) for row in read_measured(path)]
    return match_measured(rows, all_runs([scenario().with_values(values)]))


def test_a_record_is_predicted_with_its_own_loader_and_data(tmp_path):
    """160 samples in batches of 10 on one rank: 16 iterations of 3.5 s, 1.5 s of it waiting."""
    (single,) = match(write_record(tmp_path / "one", collectives=False))
    workload = single.scenario.workload
    assert (workload.dataset.num_samples, workload.loader.workers) == (160, 2)
    assert single.epoch_seconds() == pytest.approx(16 * 3.5)
    assert single.row.parts["I/O"] == pytest.approx(16 * 1.5)


HEAD = "model,gpus,local_batch_size,epoch,iterations,epoch_s"


def write(tmp_path, *lines, name="log.csv"):
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_log_has_a_row_for_each_number_of_ranks(tmp_path):
    """Of 4 GPUs epochs 2 and 3: 30 s of 20 iterations; the scenario's 1,600 samples are 40."""
    lines = ["m,4,10,1,10,99", "m,4,10,2,10,14", "m,4,10,3,10,16", "m,8,10,2,10,11"]
    path = write(tmp_path, HEAD, *lines)
    first, second = read_measured(path)
    assert first == {
        "world_size": 4,
        "hosts": None,
        "epoch_s": pytest.approx(30.0),
        "iterations": 20,
        "values": {"workload.local_batch_size": 10},
        "source": "log.csv",
    }
    assert (second["world_size"], second["iterations"]) == (8, 10)
    assert [single.epoch_seconds() for single in match(path)] == pytest.approx([60.0, 22.0])


def test_a_log_with_hosts_must_fill_those_of_the_scenario(tmp_path):
    hosts = scenario().hosts
    wrong = write(tmp_path, f"{HEAD},hosts", "m,8,10,2,10,11,4")
    with pytest.raises(InputError, match=f"{hosts} hosts, as the scenario has; got 4"):
        match(wrong)
    right = write(tmp_path, f"{HEAD},hosts", f"m,8,10,2,10,11,{hosts}")
    assert len(match(right)) == 1


def test_a_table_names_strategies_of_records(tmp_path):
    write_record(tmp_path / "one", collectives=False)
    write(tmp_path, HEAD, "m,4,10,2,10,14", "m,8,10,2,10,11")
    path = write(
        tmp_path,
        "record,strategy,fitted,io_s,workload.loader.prefetch,world_size",
        "one,local,yes,,4,",
        "log.csv,global-pfs,,3,,16",
        name="runs.csv",
    )
    record, *log = read_measured(path)
    assert record["strategy"] == "local" and record["fitted"] and record["epoch_s"] == 14.0
    assert record["values"]["workload.loader.workers"] == 2
    assert record["values"]["workload.loader.prefetch"] == 4
    assert record["source"] == "runs.csv:2" and record["parts"]["I/O"] == 6.0
    assert [row["world_size"] for row in log] == [16, 16]
    assert log[0]["strategy"] == "global-pfs" and log[0]["parts"] == {"I/O": 3.0}


@pytest.mark.parametrize(
    ("words", "files", "said"),
    [
        (
            f"{DATA}/calibrate/nccl-1-host.txt",
            {},
            "must tell how long; nccl-tests; calibrate nccl-",
        ),
        (f"{DATA}/calibrate/ior-4-hosts.txt", {}, "must tell how long; output of ior"),
        ("l.csv", {"l.csv": f"{HEAD}\na,4,8,2,9,5\nb,4,8,2,9,5\n"}, "one model; a, b; Keep"),
        ("l.csv", {"l.csv": f"{HEAD}\na,4,8,1,9,5\n"}, "a steady epoch; Log more epochs"),
        ("l.csv", {"l.csv": f"{HEAD}\na,4,8,2,9,-5\n"}, "line 2; epoch_s"),
        ("l.csv", {"l.csv": f"{HEAD}\na,4,8,2,9,5\n"}, "fits several runs; record,strategy"),
        (f"{DATA}/calibrate", {}, "a folder without any of these"),
        (
            f"{DATA}/others/gpu.json",
            {},
            "readable CSV file or an epoch log or a folder of simshuffle",
        ),
        (
            "r.csv",
            {"r.csv": "record,strategy\nr.csv,local\n"},
            "r.csv:2 record; an epoch log; 'r.csv'",
        ),
    ],
)
def test_what_is_no_training_is_refused(refused, words, files, said):
    message = " ".join(refused(["check", "quickstart", "--measured", words], files).split())
    assert [words for words in said.split("; ") if words not in message] == [], message


def test_without_extensions_it_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(measured, "merge_extensions", Extension)
    folder = write_record(tmp_path / "one")
    with pytest.raises(InputError, match=r"must be a readable CSV file; got .*directory"):
        read_measured(folder)
    with pytest.raises(InputError, match="a column world_size"):
        read_measured(write(tmp_path, HEAD, "m,4,10,2,10,14"))
    with pytest.raises(InputError, match="must be left out without extensions; got 'one'"):
        read_measured(write(tmp_path, "record", "one"))
