"""What the recorder sees of a training, and that it changes nothing else."""

import ast
import builtins
import contextlib
import errno
import gzip
import io
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

import simshuffle.extensions.doctor.recorder
from simshuffle.extensions.doctor.recorder import cores
from simshuffle.extensions.doctor.recorder import meter as meters
from simshuffle.extensions.doctor.recorder import process as processes
from simshuffle.extensions.doctor.recorder.caching import uncached_nbytes
from simshuffle.extensions.doctor.recorder.files import Files
from simshuffle.extensions.doctor.recorder.journal import Journal
from simshuffle.extensions.doctor.recorder.meter import (
    COLLATE,
    DECODE,
    OPEN,
    READ,
    TRANSFORM,
    Budget,
    Meter,
)
from simshuffle.extensions.doctor.recorder.rows import CODES, OPERATIONS
from simshuffle.extensions.doctor.records.collected import collect_record

FOLDER = Path(simshuffle.extensions.doctor.recorder.__file__).parent
NAMES = list(OPERATIONS)
OF_A_SAMPLE = ["open", "read", "decode", "transform", "lock"]
NS = 1e-9


class Numbers(Dataset):
    def __init__(self, count=16):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((3,), index)


class Compressed(Numbers):
    def __init__(self, folder, count=16):
        super().__init__(count)
        self.folder = folder
        for index in range(count):
            (folder / f"{index}.gz").write_bytes(gzip.compress(bytes(100 + index)))

    def __getitem__(self, index):
        with (self.folder / f"{index}.gz").open("rb") as file:
            packed = file.read()
        return torch.frombuffer(bytearray(gzip.decompress(packed)[:8]), dtype=torch.uint8)


class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        return iter(range(0, 20) if info is None else range(info.id, 20, info.num_workers))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "rows").mkdir()
    return tmp_path / "rows"


def recorded(folder, loop, changes=None):
    """The record of a loop in this process."""
    process = simshuffle.extensions.doctor.recorder.watch(str(folder), changes or {}, None)
    try:
        loop()
    finally:
        process.end()
    return collect_record(folder, {})


def gone_through(loader, times=1):
    def loop():
        for _ in range(times):
            for _ in loader:
                pass

    return loop


def batches(record, operation):
    return record.rows_of(operation).groupby(["loader", "epoch"])["batch"].agg(list).to_dict()


# -------------------------------------------------------------------------------------------- meter


@pytest.fixture
def ticks(monkeypatch):
    """A clock that is set by hand."""
    now = [0]
    monkeypatch.setattr(meters, "clock", lambda: now[0])
    monkeypatch.setattr(meters.time, "thread_time_ns", lambda: now[0] // 2)
    monkeypatch.setattr(meters, "core_wait_ns", lambda: now[0] // 10)
    monkeypatch.setattr(meters, "device_nbytes", lambda: now[0] * 512)
    return now


def test_an_operation_does_not_hold_those_inside_it(ticks):
    meter = Meter()
    ticks[0] = 10
    decode = meter.enter(DECODE)
    ticks[0] = 30
    read = meter.enter(READ)
    ticks[0] = 100
    meter.leave(read)
    meter.nbytes += 4096
    ticks[0] = 130
    meter.leave(decode)
    ticks[0] = 140
    meter.end_samples(7, 1)
    meter.begin_collate()
    ticks[0] = 200
    rows = {NAMES[row[0]]: row[1:] for row in meter.rows(samples=True)}
    assert rows["fetch"] == (0, 200, 100, 20, 1, 4096, 200 * 512, -1)
    assert rows["decode"][1:2] == (20 + 30,)
    assert rows["read"] == (0, 70, -1, -1, 1, 4096, 200 * 512, -1)
    assert rows["transform"][1] == 10 + 10
    assert rows["sample"] == (0, 140, -1, -1, 1, 4096, -1, 7)
    assert rows["collate"][1] == 60


def test_samples_have_no_gaps_and_only_the_slowest_has_a_row_if_that_is_wanted(ticks):
    meter = Meter()
    for index, now in ((4, 10), (2, 50), (9, 60)):
        ticks[0] = now
        meter.end_samples(index, 1)
    every = [row for row in meter.rows(samples=True) if NAMES[row[0]] == "sample"]
    assert [(row[1], row[2], row[-1]) for row in every] == [(0, 10, 4), (10, 40, 2), (50, 10, 9)]
    slowest = [row for row in meter.rows(samples=False) if NAMES[row[0]] == "sample"]
    assert slowest == [every[1]]


def test_parts_are_timed_for_at_most_their_share_of_the_time(ticks):
    budget = Budget()
    for _ in range(Budget.FIRST_BATCHES):
        assert budget.allows()
        budget.spend(100)
    budget.call_ns, budget.spent_ns = 2, 100
    ticks[0] = 10_000
    assert budget.allows()  # 1 % of 10,000 is 100
    budget.spend(100)
    assert not budget.allows()
    ticks[0] = 29_999
    assert not budget.allows()
    ticks[0] = 30_000
    assert budget.allows()


def test_a_batch_without_parts_has_its_slowest_sample(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Budget, "FIRST_BATCHES", 1)
    monkeypatch.setattr(Budget, "SHARE", 0)
    record = recorded(folder, gone_through(DataLoader(Compressed(tmp_path), 4)))
    assert list(record.rows_of("fetch")["batch"]) == [0, 1, 2, 3]
    assert list(record.rows_of("read")["batch"]) == [0]
    assert list(record.rows_of("sample")["batch"]) == [0, 0, 0, 0, 1, 2, 3]
    assert list(record.rows_of("collate")["nbytes"]) == [32] * 4
    assert record.about["files"] == 16
    assert "1 %" in record.about["notes"][0]


def test_no_thread_is_queued_for_longer_than_it_takes():
    assert meters.measure_since((0, 0, 0), (10, 3, 40)) == (0, 10, 3, 10)
    assert meters.measure_since((0, 0, -1), (10, 3, 40)) == (0, 10, 3, -1)


# -------------------------------------------------------------------------------------------- loops

MODES = {
    "in the rank": {},
    "workers": {"num_workers": 2},
    "any order": {"num_workers": 2, "in_order": False},
    "batch sampler": {"batch_size": 1, "batch_sampler": [[1, 2], [3], [4, 5, 6]]},
}


@pytest.mark.parametrize("mode", MODES)
def test_every_batch_has_its_wait_step_and_fetch(folder, mode):
    loader = DataLoader(Numbers(), **{"batch_size": 4, **MODES[mode]})
    count = len(loader)
    record = recorded(folder, gone_through(loader, 2))
    for epoch in (0, 1):
        waits = batches(record, "wait")[0, epoch]
        assert sorted(waits) == [-1, *range(count)]  # the last is for the end
        assert waits[-1] == -1
        assert sorted(batches(record, "step")[0, epoch]) == list(range(count))
        assert sorted(batches(record, "fetch")[0, epoch]) == list(range(count))
    workers = set(record.rows_of("fetch")["worker"])
    assert workers == ({0, 1} if loader.num_workers else {-1})
    assert set(record.rows_of("wait")["worker"]) == {-1}
    assert set(record.rows["rank"]) == {0}
    assert len(record.rows_of("send")) == (2 * count if loader.num_workers else 0)


def test_a_batch_that_comes_before_its_turn_has_its_own_number(folder):
    second_came = multiprocessing.Event()

    class FirstIsLate(Numbers):
        def __getitem__(self, index):
            assert index != 0 or second_came.wait(60)
            return index

    given = []

    def loop():
        for batch in DataLoader(FirstIsLate(4), 2, num_workers=2, in_order=False):
            given.append(batch.tolist())
            second_came.set()

    record = recorded(folder, loop)
    assert given == [[2, 3], [0, 1]]
    assert batches(record, "wait")[0, 0] == [1, 0, -1]
    assert batches(record, "step")[0, 0] == [1, 0]


def test_waits_and_steps_cover_the_loop(folder):
    record = recorded(folder, gone_through(DataLoader(Numbers(), 4)))
    spans = record.rows_of("wait", "step").sort_values("start_s")
    begin, end = spans["start_s"].min(), (spans["start_s"] + spans["seconds"]).max()
    assert list(spans["operation"]) == ["wait", "step"] * 4 + ["wait"]
    gaps = (spans["start_s"] - (spans["start_s"] + spans["seconds"]).shift()).dropna()
    assert (gaps > -2 * NS).all()  # none lies over another
    assert spans["seconds"].sum() <= end - begin + 10 * NS


def test_persistent_workers_go_on_with_the_next_epoch(folder):
    loader = DataLoader(Numbers(), 4, num_workers=1, persistent_workers=True)
    record = recorded(folder, gone_through(loader, 2))
    assert batches(record, "fetch") == {(0, 0): [0, 1, 2, 3], (0, 1): [0, 1, 2, 3]}
    assert record.about["loaders"][0]["persistent_workers"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_of_samples(folder, workers):
    loader = DataLoader(Stream(), 6, num_workers=workers)
    given = []
    record = recorded(folder, lambda: given.extend(loader))
    waits = [batch for batch in batches(record, "wait")[0, 0] if batch >= 0]
    assert len(waits) == len(given) == 4
    assert set(batches(record, "fetch")[0, 0]) == set(waits)
    assert (record.rows_of("sample")["sample"] == -1).all()
    assert record.rows_of("fetch")["count"].sum() == 20


def test_numbers_in_a_batch_are_no_bytes(folder):
    loader = DataLoader(range(9), 3, collate_fn=lambda batch: {"x": batch, "y": [torch.zeros(2)]})
    assert list(recorded(folder, gone_through(loader)).rows_of("collate")["nbytes"]) == [8, 8, 8]


def test_without_batches_each_sample_is_one(folder):
    record = recorded(folder, gone_through(DataLoader(Numbers(5), batch_size=None)))
    assert list(record.rows_of("sample")["sample"]) == [0, 1, 2, 3, 4]
    assert list(record.rows_of("fetch")["count"]) == [1] * 5


def test_samples_of_a_subset_are_told_apart(folder):
    record = recorded(folder, gone_through(DataLoader(Subset(Numbers(), [9, 8, 7, 6]), 2)))
    assert list(record.rows_of("sample")["sample"]) == [0, 1, 2, 3]


def test_a_batch_that_a_data_set_gives_at_once_is_one_row(folder):
    class AtOnce(Numbers):
        def __getitems__(self, indices):
            return [self[index] for index in indices]

    record = recorded(folder, gone_through(DataLoader(AtOnce(), 8)))
    assert list(record.rows_of("sample")["count"]) == [8, 8]
    assert (record.rows_of("sample")["sample"] == -1).all()


def test_a_loop_that_is_left_and_one_inside_another(folder):
    training, validation = DataLoader(Numbers(), 4), DataLoader(Numbers(8), 4)
    model = nn.Linear(3, 1)

    def loop():
        for number, _ in enumerate(training):
            for batch in validation:
                model(batch.float())
            model(torch.zeros(1, 3))
            if number == 1:
                break

    record = recorded(folder, loop)
    assert batches(record, "step") == {(0, 0): [0, 1], (1, 0): [0, 1], (1, 1): [0, 1]}
    assert batches(record, "forward") == {(0, 0): [0, 1], (1, 0): [0, 1], (1, 1): [0, 1]}


def test_a_loader_that_is_made_anew_is_the_same(folder):
    numbers = Numbers()

    def loop():
        for _ in range(2):
            gone_through(DataLoader(numbers, 8))()
        gone_through(DataLoader(numbers, 4))()

    assert set(batches(recorded(folder, loop), "wait")) == {(0, 0), (0, 1), (1, 0)}


def test_what_a_data_set_raises_is_raised(folder):
    class Broken(Numbers):
        def __getitem__(self, index):
            if index == 5:
                raise KeyError("five")
            return super().__getitem__(index)

    def loop(workers):
        with pytest.raises(KeyError, match="five"):
            gone_through(DataLoader(Broken(), 4, num_workers=workers))()

    for workers in (0, 1):
        record = recorded(folder, partial(loop, workers))
    assert batches(record, "step")[0, 0] == [0, 0]


# ------------------------------------------------------------------------------------------ samples


@pytest.mark.parametrize("workers", [0, 1])
def test_the_parts_of_a_fetch_add_up(folder, tmp_path, workers):
    loader = DataLoader(Compressed(tmp_path), 4, num_workers=workers)
    record = recorded(folder, gone_through(loader))
    by_batch = record.rows.pivot_table(
        index="batch", columns="operation", values="seconds", aggfunc="sum", observed=True
    ).loc[0:]
    parts = by_batch[[name for name in OF_A_SAMPLE if name in by_batch]].sum(axis=1)
    assert parts.to_numpy() == pytest.approx(by_batch["sample"].to_numpy(), abs=NS)
    assert (parts + by_batch["collate"]).to_numpy() == pytest.approx(
        by_batch["fetch"].to_numpy(), abs=NS
    )
    assert (by_batch[["open", "read", "decode"]] > 0).all(axis=None)
    sizes = [(tmp_path / f"{index}.gz").stat().st_size for index in range(16)]
    assert list(record.rows_of("sample")["nbytes"]) == sizes
    assert (
        record.rows_of("read")["nbytes"].sum()
        == record.rows_of("fetch")["nbytes"].sum()
        == sum(sizes)
    )
    assert list(record.rows_of("open")["count"]) == [4, 4, 4, 4]
    assert list(record.rows_of("collate")["nbytes"]) == [32, 32, 32, 32]
    assert (record.about["files"], record.about["files_nbytes"]) == (16, sum(sizes))
    fetch = record.rows_of("fetch")
    assert (fetch["cpu_s"] > 0).all()
    assert (fetch["queued_s"] <= fetch["seconds"]).all()


def test_reading_in_other_ways(folder, tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(bytes(1000))

    class Ways(Numbers):
        def __getitem__(self, index):
            descriptor = os.open(path, os.O_RDONLY)
            given = len(os.pread(descriptor, 300, 0)) + len(os.read(descriptor, 200))
            os.close(descriptor)
            return given + len(path.read_bytes()) + len(path.open(encoding="utf-8").read())

    path.open(encoding="utf-8").close()
    with pytest.warns(ResourceWarning):
        record = recorded(folder, gone_through(DataLoader(Ways(1), 1)))
    assert record.rows_of("read")["nbytes"].sum() == 300 + 200 + 1000 + 1000
    assert record.rows_of("open")["count"].sum() == 3


class Socket:
    def makefile(self, mode):
        return io.BytesIO(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")


def test_what_is_read_in_other_ways_is_counted_once(folder, tmp_path):
    import http.client

    (tmp_path / "floats").write_bytes(bytes(40))

    class Ways(Numbers):
        def __getitem__(self, index):
            response = http.client.HTTPResponse(Socket())
            response.begin()
            return len(response.read()) + len(numpy.fromfile(tmp_path / "floats", "f4"))

    record = recorded(folder, gone_through(DataLoader(Ways(2), 1)))
    assert list(record.rows_of("read")["nbytes"]) == [45, 45]
    assert list(record.rows_of("read")["count"]) == [2, 2]


def test_what_the_page_cache_does_not_hold(tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(bytes(100_000))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if not uncached_nbytes(file.fileno(), 100_000):
            pytest.skip("this kernel does not say what its page cache holds, or keeps all of it")
        assert uncached_nbytes(file.fileno(), 100_000) == 100_000
        file.read()
        assert uncached_nbytes(file.fileno(), 100_000) == 0


def test_without_a_device_bytes_are_shared_out_by_what_was_cached_when_files_were_opened(ticks):
    meter = Meter()
    meter.opened_nbytes, meter.uncached_nbytes, meter.nbytes = (
        4000,
        1000,
        2000,
    )  # half of them was read
    meter.end_samples(0, 1)
    meter.enter(READ)
    fetch, read = (
        next(row for row in meter.rows(samples=True) if row[0] == CODES[name])
        for name in ("fetch", "read")
    )
    assert fetch[7] == read[7] == 500


def test_locks_between_processes(folder):
    class Locked(Numbers):
        def __getitem__(self, index):
            with lock:
                pass
            lock.acquire()
            lock.release()
            return index

    def loop():
        nonlocal lock
        lock = multiprocessing.Lock()
        gone_through(DataLoader(Locked(2), 2))()

    lock = None
    assert list(recorded(folder, loop).rows_of("lock")["count"]) == [4]


def test_files_beyond_the_bound_are_estimated():
    files = Files({})
    with Path(os.devnull).open("rb") as opened:
        for number in range(20_000):
            files.note(f"/data/train/{number}.jpg", opened)
    assert len(files.sizes) <= 1024
    estimate = len(files.sizes) / (files.bound / 2**32)
    assert estimate == pytest.approx(20_000, rel=0.1)


# -------------------------------------------------------------------------------------------- steps


def test_what_is_done_with_a_batch(folder):
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loop():
        for batch in DataLoader(Numbers(), 8):
            model(batch.to(torch.float32)).sum().backward()
            batch.to("cpu", copy=True)
            batch.to("cpu")
            optimizer.step()

    record = recorded(folder, loop)
    for operation in ("copy", "forward", "backward", "optimizer"):
        assert batches(record, operation) == {(0, 0): [0, 1]}, operation
        assert list(record.rows_of(operation)["count"]) == [1, 1], operation
    assert list(record.rows_of("copy")["nbytes"]) == [8 * 3 * 8] * 2
    parts = (
        record.rows_of("copy", "forward", "backward", "optimizer").groupby("batch")["seconds"].sum()
    )
    assert (parts.to_numpy() <= record.rows_of("step")["seconds"].to_numpy()).all()
    assert record.about["model"] == {"parameters": 11, "gradient_nbytes": 44}
    assert record.about["device"] == "cpu"
    assert record.about["threads"] == torch.get_num_threads()


class Wrapping(torch.optim.Optimizer):
    """An optimizer that steps by another one, twice, of which one step may fail."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner, self.fails = inner, False

    def step(self):
        self.inner.step()
        with contextlib.suppress(ArithmeticError):
            self.inner.step(self.closure)

    def closure(self):
        if self.fails:
            raise ArithmeticError


@pytest.mark.parametrize("fails", [False, True])
def test_an_optimizer_inside_another_is_a_part_of_it(fails, folder):
    """What comes behind it in the batch is timed, too."""
    model = nn.Linear(3, 2)
    optimizer = Wrapping(torch.optim.SGD(model.parameters(), 0.1))
    optimizer.fails = fails

    def loop():
        for batch in DataLoader(Numbers(), 8):
            model(batch.float()).sum().backward()
            optimizer.step()
            model(batch.float())

    record = recorded(folder, loop)
    for operation, count in (("optimizer", 1), ("backward", 1), ("forward", 2)):
        assert batches(record, operation) == {(0, 0): [0, 1]}, operation
        assert list(record.rows_of(operation)["count"]) == [count, count], operation


def test_an_optimizer_that_fails_leaves_later_batches_as_they_are(folder):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def fail():
        raise ArithmeticError

    def loop():
        for number, batch in enumerate(DataLoader(Numbers(), 8)):
            model(batch.float()).sum().backward()
            if number == 0:
                with pytest.raises(ArithmeticError):
                    optimizer.step(fail)
            optimizer.step()
            model(batch.float())

    record = recorded(folder, loop)
    assert batches(record, "optimizer") == {(0, 0): [0, 1]}
    assert list(record.rows_of("forward")["count"]) == [2, 2]


def test_what_is_compiled_stays_whole(folder):
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    def loop():
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        inside = torch.compile(
            lambda x: model(x.to(torch.float32)), backend="eager", fullgraph=True
        )
        for batch in DataLoader(Numbers(), 8):
            compiled(batch.float()).sum().backward()
            inside(batch)
        inside(torch.zeros(8, 3, dtype=torch.int64))

    record = recorded(folder, loop)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
    assert list(record.rows_of("forward")["count"]) == [1, 1]


# ------------------------------------------------------------------------------- nothing is changed


def test_everything_is_put_back(folder):
    def functions():
        places = (builtins, io, os, gzip, DataLoader, nn.Module, torch.Tensor, torch.autograd)
        return {
            (str(place), name): value for place in places for name, value in vars(place).items()
        }

    before, finders = functions(), list(sys.meta_path)
    recorded(folder, gone_through(DataLoader(Numbers(), 8)))
    after = functions()
    assert {key for key in before if after.get(key) is not before[key]} == set()
    assert after.keys() == before.keys()
    assert sys.meta_path == finders


def test_files_are_what_they_were(folder, tmp_path):
    path = tmp_path / "text"
    path.write_text("first\nsecond\n")
    calls = [
        ((path,), {}),
        ((str(path), "rb"), {}),
        ((os.fsencode(path), "rb", 0), {}),
        ((path, "rt"), {"encoding": "latin-1", "newline": "\n", "buffering": 16}),
        ((path, "r+"), {}),
        ((path, "rb"), {"opener": os.open}),
    ]
    refused = [
        ((tmp_path / "none",), {}),
        ((tmp_path,), {}),
        ((path, "rb"), {"encoding": "utf-8"}),
        ((path, "rx"), {}),
        ((path,), {"buffering": 0}),
        ((path,), {"encoding": "no such"}),
        ((3.5,), {}),
    ]

    def seen():
        told = []
        for args, kwargs in calls:
            with open(*args, **kwargs) as file:  # noqa: PTH123
                kind = io.FileIO if isinstance(file, io.FileIO) else type(file)
                told.append((kind, file.name, file.mode, file.read(), file.closed))
                told.append([getattr(file, name, None) for name in ("encoding", "newlines")])
        for args, kwargs in refused:
            with pytest.raises(Exception) as error:
                open(*args, **kwargs)  # noqa: PTH123, SIM115
            told.append((type(error.value), error.value.args))
        return told

    before = seen()
    process = simshuffle.extensions.doctor.recorder.watch(str(folder), {}, None)
    try:
        assert seen() == before
        assert pickle.dumps(open) == pickle.dumps(io.open)
        holder = type("Holder", (), {"opens": open})
        holder().opens(path).close()  # it is not bound, as a function written in C is not
    finally:
        process.end()


def test_the_recorder_imports_the_standard_library_alone():
    paths = sorted(FOLDER.rglob("*.py"))
    assert len(paths) > 8
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            else:
                continue
            assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names, path


# -------------------------------------------------------------------------------------- other cases


def script(tmp_path, folder, text, environment=None):
    """A script under the recorder, as the command line runs it."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    site = os.pathsep.join(
        [simshuffle.extensions.doctor.recorder.SITE, *(environment or {}).pop("paths", [])]
    )
    told = {
        "PYTHONPATH": site,
        simshuffle.extensions.doctor.recorder.FOLDER: str(folder),
        **(environment or {}),
    }
    given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, path], env=given | told, capture_output=True, text=True, check=False
    )


def test_the_cores_that_a_process_may_use_are_busy_with_all_but_waiting(monkeypatch):
    """Of the second of two cores, in hundredths of a second: user 1, nice 2, system 4, irq 32,
    softirq 64, what others of the host had 128; not idle 8, waiting 16, or guests, who are users,
    too."""
    text = b"cpu 9 9 9 9 9 9 9 9 0 0\ncpu0 7 7 7 7 7 7 7 7 0 0\ncpu1 1 2 4 8 16 32 64 128 256 512\n"
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: {1})
    monkeypatch.setattr(cores.os, "sysconf", lambda _: 100)
    monkeypatch.setattr(cores.os, "read", lambda *_: text)
    assert cores.read_use()[1] == 231 * 10**7
    monkeypatch.setattr(cores.os, "read", lambda *_: b"cpu 9\n")
    assert cores.read_use()[1] == -1


def test_what_is_known_is_written_ever_more_seldom(monkeypatch):
    """1 s after the last time, then 2 s, then 4 s."""
    at, saves = [0], []
    own = SimpleNamespace(saved_at=0, save_interval=10**9)
    own.save = lambda: (saves.append(at[0]), setattr(own, "saved_at", at[0]))
    monkeypatch.setattr(processes, "clock", lambda: at[0])
    for tenths in range(100):
        at[0] = tenths * 10**8
        processes.Process.save_now_and_then(own)
    assert saves == [11 * 10**8, 32 * 10**8, 73 * 10**8]


def test_a_script_without_torch_runs_as_it_would(tmp_path, folder):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.own = 'is run'\n")
    run = script(
        tmp_path,
        folder,
        """
        import os, subprocess, sys
        import gzip, sitecustomize
        assert 'exec_module' not in vars(gzip.__loader__) and gzip.decompress.__wrapped__
        assert 'simshuffle' not in sys.modules and 'json' not in sys.modules
        print(own, sitecustomize.__file__)
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        sys.exit(7)
        """,
        {"paths": [str(own)]},
    )
    assert run.stderr == ""
    assert run.stdout == f"is run {own / 'sitecustomize.py'}\n"
    assert run.returncode == 7
    assert len(list(folder.glob("*.json"))) == 2
    with pytest.raises(Exception, match="2 without torch"):
        collect_record(folder, {"command": ["python", "script.py"]})


def test_spawned_workers_and_an_end_in_order_when_the_time_is_over(tmp_path, folder):
    text = """
        import os, sys
        import torch
        from torch.utils.data import DataLoader

        if __name__ == "__main__":
            loader = DataLoader(range(10), 2, num_workers=1, multiprocessing_context="spawn")
            for batch in loader:
                pass
            while True:
                for batch in DataLoader(range(10), 2):
                    pass
        """
    run = script(tmp_path, folder, text, {simshuffle.extensions.doctor.recorder.SECONDS: "0.2"})
    assert (run.returncode, run.stderr) == (0, "")
    record = collect_record(folder, {})
    assert record.about["stopped"]
    assert record.about["host"]["cores"] > 0
    assert ("others" in record.about["host"]) == Path("/proc/stat").exists()
    spawned = record.rows_of("fetch")[record.rows_of("fetch")["worker"] == 0]
    assert list(spawned["batch"]) == [0, 1, 2, 3, 4]
    assert set(spawned["loader"]) == {0}


def killed(folder):
    simshuffle.extensions.doctor.recorder.watch(folder, {}, None)
    for number, _ in enumerate(DataLoader(range(10), 2)):
        if number == 3:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_loses_no_batch(folder):
    process = multiprocessing.get_context("fork").Process(target=killed, args=(str(folder),))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    record = collect_record(folder, {})
    assert batches(record, "wait") == {(0, 0): [0, 1, 2, 3]}
    assert batches(record, "step") == {(0, 0): [0, 1, 2]}
    assert record.about["loaders"][0]["batch_size"] == 2


def test_rows_are_those_of_the_codes():
    assert [CODES[name] for name in ("open", "transform", "collate")] == [OPEN, TRANSFORM, COLLATE]
    assert json.loads(json.dumps(OPERATIONS)) == OPERATIONS


def test_a_full_disk_ends_the_record_and_not_the_training(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    journal = Journal(str(tmp_path))
    journal.write([b"row"])
    assert [path.stat().st_size for path in tmp_path.glob("*.json")] == [0]
