"""One record from the rows and facts of processes."""

import json

import numpy as np
import pytest

from simshuffle.errors import InputError
from simshuffle.extensions.doctor.recorder.rows import CODES, FIELDS, ROW
from simshuffle.extensions.doctor.records.collected import collect_record

EMPTY = dict.fromkeys(FIELDS, -1) | {"rank": -1, "loader": 0, "epoch": 0, "count": 0, "nbytes": 0}


def packed(operation, start, duration, **others):
    values = {"operation": CODES[operation], "start": start, "duration": duration}
    return ROW.pack(*(EMPTY | values | others).values())


def process(folder, name, rows=(), **facts):
    (folder / f"{name}.json").write_text(json.dumps({"pid": int(name.split("-")[0]), **facts}))
    if rows:
        (folder / f"{name}.rows").write_bytes(b"".join(rows))


def test_workers_get_rank_loader_and_epoch_of_who_started_them(tmp_path):
    wait = packed("wait", 10, 5, batch=0)
    process(tmp_path, "7", [wait], parent=1, rank=3, ranks=4, workers={"8": [1, 2]})
    fetch = packed("fetch", 4, 9, loader=-1, epoch=1, batch=0, worker=0, cpu=3, disk=512)
    process(tmp_path, "8", [fetch], parent=7)
    record = collect_record(tmp_path, {"command": ["python", "train.py"]})
    assert record.about["ranks"] == 4
    assert record.about["made_by"] == "simshuffle"
    fetched, waited = record.rows.itertuples()
    assert (fetched.rank, fetched.loader, fetched.epoch, fetched.worker) == (3, 1, 3, 0)
    assert (fetched.operation, fetched.start_s, fetched.seconds) == ("fetch", 0, 9e-9)
    assert (fetched.cpu_s, fetched.disk_nbytes) == (3e-9, 512)
    assert np.isnan(fetched.queued_s)
    assert (waited.rank, waited.loader, waited.epoch, waited.worker) == (3, 0, 0, -1)
    assert waited.start_s == pytest.approx(6e-9)


def test_a_worker_that_was_killed_before_it_said_its_host(tmp_path):
    host = {"name": "a"}
    process(tmp_path, "7", [packed("wait", 10, 5)], host=host, workers={"8": [2, 0]}, rank=1)
    process(tmp_path, "8", [packed("fetch", 4, 9, loader=-1, worker=0)])
    rows = collect_record(tmp_path, {}).rows_of("fetch")
    assert (list(rows["rank"]), list(rows["loader"])) == ([1], [2])


def test_a_worker_nobody_lists_has_the_rank_of_its_parent(tmp_path):
    process(tmp_path, "7", [packed("wait", 10, 5)], parent=1, rank=1)
    process(tmp_path, "9", [packed("fetch", 4, 9, loader=-1, worker=0)], parent=7)
    rows = collect_record(tmp_path, {}).rows
    assert list(rows["rank"]) == [1, 1]
    assert list(rows["loader"]) == [-1, 0]


def test_what_is_busy_and_is_not_ours_is_others(tmp_path):
    """Over 10 s the cores were busy for 15 s; the rank computed for 6 s, its worker for 4 s."""
    host = {"name": "a", "cores": 2}
    second = 10**9
    rank = [[0, second, 0], [10 * second, 16 * second, 6 * second]]
    worker = [[2 * second, 3 * second, 0], [9 * second, 14 * second, 4 * second]]
    process(tmp_path, "7", [packed("wait", 10, 5)], host=host, use=rank, workers={"8": [0, 0]})
    process(tmp_path, "8", [packed("fetch", 4, 9, worker=0)], host=host, use=worker, parent=7)
    assert collect_record(tmp_path, {}).about["host"]["others"] == pytest.approx(0.5)
    rank[1][1] = -1  # not known
    process(tmp_path, "7", [packed("wait", 10, 5)], host=host, use=rank)
    assert "others" not in collect_record(tmp_path, {}).about["host"]


def test_ranks_without_a_number_are_numbered_by_their_first_batch(tmp_path):
    process(tmp_path, "11", [packed("wait", 90, 5)])
    process(tmp_path, "12", [packed("wait", 20, 5)])
    process(tmp_path, "13")
    record = collect_record(tmp_path, {})
    assert list(record.rows["rank"]) == [0, 1]
    assert record.about["ranks"] == 2


def test_hosts_are_put_on_one_clock(tmp_path):
    process(tmp_path, "1", [packed("wait", 100, 5)], host={"name": "a"}, clock=1000, rank=0)
    process(tmp_path, "1-1", [packed("wait", 7000, 5)], host={"name": "b"}, clock=-5870, rank=1)
    assert collect_record(tmp_path, {}).rows["start_s"].max() == pytest.approx(30e-9)


def test_a_cut_row_is_left_out_and_said(tmp_path):
    process(tmp_path, "5", [packed("wait", 1, 2), packed("step", 3, 4)[:40]])
    record = collect_record(tmp_path, {})
    assert list(record.rows["operation"]) == ["wait"]
    assert record.about["notes"] == ["The last row of 1 of 1 processes is cut and left out."]


def test_files_are_counted_once_and_scaled_by_the_smallest_bound(tmp_path):
    all_of_them = {"bound": 2**32, "sizes": {"5": 10, str(2**31 + 5): 30}}
    process(tmp_path, "5", [packed("wait", 1, 2)], files=all_of_them)
    process(tmp_path, "6", files={"bound": 2**31, "sizes": {"5": 10, "6": 20}})
    about = collect_record(tmp_path, {}).about
    assert (about["files"], about["files_nbytes"]) == (4, 60)


@pytest.mark.parametrize(
    "facts, said",
    [
        ([], "no Python process that loaded the recorder"),
        ([{}], "1 without torch"),
        ([{"torch": "2.13.0"}, {}], "2 without a batch"),
    ],
)
def test_nothing_seen_says_why(tmp_path, facts, said):
    for number, each in enumerate(facts, 1):
        process(tmp_path, str(number), **each)
    with pytest.raises(InputError, match=rf"{said} in `python train\.py`"):
        collect_record(tmp_path, {"command": ["python", "train.py"]})
