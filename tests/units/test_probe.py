"""simshuffle machine probe: which files are measured, what is booked where, the fragments, and that
a file system is left as it was. No test looks at how long anything takes: the clock is the tests'
own."""

import contextlib
import dataclasses
import io
import itertools
import subprocess
import sys

import pytest
import yaml
from PIL import Image

from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.extensions.calibration import command
from simshuffle.extensions.calibration.probe import probe, storage
from simshuffle.extensions.calibration.probe import samples as measuring
from simshuffle.extensions.calibration.probe.storage_rates import StorageRates
from simshuffle.job.scenario.scenario import load_scenario

DATASET, SCHEDULE = "workload.dataset", "workload.exchange.schedule"


def ticking():
    """A clock by which everything takes a second."""
    return itertools.count(1.0).__next__


def by_key(folder, clock=None):
    costs = probe(folder, clock=clock or ticking()).costs
    return {cost.key: cost for cost in costs}


@pytest.fixture
def images(tmp_path):
    """Eight JPEGs of 60 x 40 pixels in two folders, a table of labels, and an empty file."""
    folder = tmp_path / "images"
    for number in range(8):
        path = folder / f"class-{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((60, 40), 10.0 * number).save(path)
    (folder / "labels.csv").write_text("a" * 100_000)
    (folder / "empty.jpg").write_bytes(b"")
    return folder


@pytest.fixture
def arrays(tmp_path):
    """A file of 100 B and one of 300 B."""
    folder = tmp_path / "arrays"
    folder.mkdir()
    for size in (100, 300):
        (folder / f"{size}.npy").write_bytes(bytes(size))
    return folder


def test_sizes_are_those_of_the_commonest_files(images):
    costs = by_key(images)
    sizes = [path.stat().st_size for path in images.rglob("class-*/*.jpg")]
    mean = sum(sizes) / 8
    std = (sum((size - mean) ** 2 for size in sizes) / 8) ** 0.5
    assert costs[f"{DATASET}.sample_size.mean"].value == pytest.approx(mean)
    assert costs[f"{DATASET}.sample_size.std"].value == pytest.approx(std)
    assert costs[f"{DATASET}.decoded_size.mean"].value == 60 * 40 * 3


def test_what_is_in_proportion_to_the_size_is_for_the_mean_one(arrays):
    costs = by_key(arrays)
    # a second each: 2 s and 2/3 s for 200 B
    for key in (f"{DATASET}.decode", f"{DATASET}.encode", f"{SCHEDULE}.pickle"):
        assert costs[key].value == pytest.approx(4 / 3)
        assert costs[key].spread == pytest.approx((1.0, 5 / 3))
    assert costs[f"{SCHEDULE}.write"].value == pytest.approx(8 / 3)
    for key in ("read", "zero_buffer", "remove"):
        assert costs[f"{SCHEDULE}.{key}"].value == 1.0
    assert costs[f"{SCHEDULE}.draw"].value == 1 / 2048
    assert costs[f"{DATASET}.decoded_size.mean"].value == 200


class Time:
    """A clock on which nothing takes time but what is made to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def takes(self, seconds, action):
        def slow(*arguments):
            self.now += seconds
            return action(*arguments)

        return slow


def test_each_action_is_booked_to_its_own_key(arrays, monkeypatch):
    clock = Time()
    takes = clock.takes
    (arrays / "100.npy").unlink()
    for name, seconds in (("pickle_sample", 2.0), ("zero_buffer", 7.0)):
        monkeypatch.setattr(measuring, name, takes(seconds, getattr(measuring, name)))
    slow = measuring.SampleCoder(takes(5.0, bytearray), takes(3.0, bytes), len)
    monkeypatch.setattr(measuring, "ARRAY_CODER", slow)
    costs = by_key(arrays, clock)
    assert {key: cost.value for key, cost in costs.items() if cost.spread is not None} == {
        f"{DATASET}.decode": 5.0,
        f"{DATASET}.encode": 3.0,
        f"{SCHEDULE}.read": 0.0,
        f"{SCHEDULE}.pickle": 2.0,
        f"{SCHEDULE}.zero_buffer": 7.0,
        f"{SCHEDULE}.write": 3.0,
        f"{SCHEDULE}.remove": 0.0,
        f"{SCHEDULE}.draw": 0.0,
    }


def test_a_scenario_includes_what_is_printed(images, tmp_path):
    path = tmp_path / "host.yaml"
    path.write_text(probe(images, clock=ticking()).to_yaml())
    scenario = load_scenario("quickstart", {"include": str(path)})
    dataset = scenario.workload.dataset
    assert dataset.decoded_nbytes == 7200
    assert dataset.decode_seconds == pytest.approx(by_key(images)[f"{DATASET}.decode"].value, 1e-3)
    assert [record.key for record in scenario.calibrated] == [
        f"{DATASET}.decode",
        f"{DATASET}.encode",
    ]
    assert "quartiles" in scenario.calibrated[0].note
    assert "8 files of the folder" in scenario.calibrated[0].source


def test_the_costs_of_an_exchange_are_set_on_demand(arrays, tmp_path):
    costs, path = probe(arrays, clock=ticking()), tmp_path / "host.yaml"
    assert set(yaml.safe_load(costs.to_yaml())["values"]) == {
        cost.key for cost in costs.costs if cost.key.startswith(DATASET)
    }
    assert f"# {SCHEDULE}.zero_buffer: 1 s  # 4 MiB" in costs.to_yaml()
    path.write_text(costs.to_yaml(exchange=True))
    scenario = load_scenario("abci-imagenet1k", {"include": str(path)})
    schedule = scenario.workload.exchange.exchange_schedule
    assert (schedule.read, schedule.zero_buffer, schedule.remove) == (1.0, 1.0, 1.0)
    assert schedule.pickle == pytest.approx(4 / 3, rel=1e-3)
    assert len(scenario.calibrated) == 8


def test_the_files_are_only_read(images):
    before = {path: path.stat().st_mtime_ns for path in images.rglob("*")}
    probe(images, clock=ticking())
    assert {path: path.stat().st_mtime_ns for path in images.rglob("*")} == before


def test_without_a_folder_photographs_are_made_whose_sizes_are_nobodys(monkeypatch):
    monkeypatch.setattr(measuring, "MAX_FILES", 3)
    costs = probe(clock=ticking())
    assert {cost.key for cost in costs.costs if cost.key.startswith(DATASET)} == {
        f"{DATASET}.decode",
        f"{DATASET}.encode",
    }
    assert 100_000 < costs.files.sizes[0] < 120_000
    assert "3 JPEGs of 500 x 375 pixels made" in costs.to_yaml()


@pytest.mark.parametrize(("most", "count"), [(400, 2), (10_000, 4)])
def test_of_large_files_fewer_are_measured(tmp_path, monkeypatch, most, count):
    monkeypatch.setattr(measuring, "MAX_FILES", 4)
    monkeypatch.setattr(measuring, "MIN_FILES", 1)
    monkeypatch.setattr(measuring, "MAX_NBYTES", most)
    for number in range(6):
        (tmp_path / f"{number}.npy").write_bytes(bytes(200))
    files = measuring.choose_files(tmp_path)
    assert (len(set(files.paths)), len(files.sizes)) == (count, 6)


def test_only_so_many_files_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "MAX_LISTED_FILES", 3)
    for number in range(6):
        (tmp_path / f"{number}.npy").write_bytes(bytes(200))
    assert len(measuring.choose_files(tmp_path).sizes) == 3


@pytest.mark.parametrize("suffix", [".png", ".webp", ".bmp"])
def test_images_of_other_formats_are_encoded_as_they_were(tmp_path, suffix):
    Image.effect_noise((60, 40), 10.0).save(tmp_path / f"one{suffix}")
    again = measuring.encode_image(measuring.decode_image((tmp_path / f"one{suffix}").read_bytes()))
    assert Image.open(io.BytesIO(again)).format == suffix[1:].upper()


@pytest.mark.parametrize("keep", [0, 200])
def test_a_broken_image_is_named(images, keep):
    path = images / "class-1" / "5.jpg"
    path.write_bytes(path.read_bytes()[:keep] or b"no image")
    with pytest.raises(InputError, match=f"must hold files that can be decoded.*{path}"):
        probe(images)


def test_pillow_is_needed_for_images_only(images, arrays, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(InputError, match=r"decoding images needs Pillow.*'simshuffle\[train\]'"):
        probe(images)
    assert f"{DATASET}.decode" in by_key(arrays)


def test_the_verb_prints_the_fragment_and_nothing_else(arrays, capsys):
    assert main(["machine", "probe", str(arrays)]) == 0
    out, err = capsys.readouterr()
    assert set(yaml.safe_load(out)) == {"values", "calibrated"}
    assert err == ""
    assert main(["machine", "probe", str(arrays), "--exchange"]) == 0
    assert f"{SCHEDULE}.read" in yaml.safe_load(capsys.readouterr().out)["values"]


# -------------------------------------------------------------------------------------- storage


@pytest.fixture
def small(monkeypatch):
    """Blocks of 1 kB, so that a large file has 16 kB, and at most 40 small files."""
    for name, value in {"BLOCK_NBYTES": 1000, "MIN_NBYTES": 8e3, "MAX_SMALL_FILES": 40}.items():
        monkeypatch.setattr(storage, name, value)


@pytest.fixture
def served(small, monkeypatch):
    """A file system on which a small file takes 2 s to open and read and 8 s to make, and a block
    of 1 kB takes 1 s to read; and its clock, on which nothing else takes time."""
    clock = Time()
    takes = clock.takes
    monkeypatch.setattr(storage, "READERS", (1,))
    for name, seconds in (("read_small_file", 2.0), ("read_block", 1.0)):
        monkeypatch.setattr(storage, name, takes(seconds, getattr(storage, name)))
    monkeypatch.setattr(storage.os, "fsync", takes(8.0, storage.os.fsync))
    return clock


def test_rates_are_counts_over_seconds(served, tmp_path):
    found = storage.probe_storage(tmp_path, 180e3, 1e4, clock=served)
    assert found.counts == (10, 139_000)  # a quarter of 180 kB in small files
    assert found.create_rate == pytest.approx(1 / 8)
    assert found.open_rates == {1: [0.5] * 5}
    assert found.read_bandwidths == {1: pytest.approx([1000.0] * 5)}
    # the large file is synchronised after every fourth of its 139 blocks, and at the end
    assert found.write_bandwidth == pytest.approx(139_000 / (8 * (139 // 4 + 1)))


def test_it_stops_when_the_seconds_are_over(served, tmp_path):
    found = storage.probe_storage(tmp_path, 1e7, 100.0, clock=served)
    assert found.counts == (3, 12_000)  # 20 s of 8 s each, and of 8 s for four blocks
    assert served() < 130


def test_readers_share_the_files(small):
    seen = []

    def read(each):
        seen.append(each)
        return 1

    shares = [range(reader, 40, 4) for reader in range(4)]
    got, took = storage.read_concurrently(shares, read, 10.0, lambda: 0.0)
    assert (sorted(seen), got, took) == ([*range(40)], 40, 0.0)


def test_a_scenario_includes_what_storage_gives(small, tmp_path, monkeypatch):
    rates = StorageRates(
        mount="nfs4 at /data",
        is_shared=True,
        open_rates={1: [90.0, 100.0, 110.0], 8: [300.0, 390.0, 400.0]},
        read_bandwidths={1: [1e8] * 3, 8: [0.9e8] * 3},
        create_rate=50.0,
        write_bandwidth=2e7,
        counts=(40, 1e9),
        device_share=None,
    )
    path = tmp_path / "storage.yaml"
    path.write_text(rates.to_yaml())
    scenario = load_scenario("quickstart", {"include": str(path)})
    files = scenario.cluster.parallel_file_system
    assert (files.open_rate, files.latency, files.read_bandwidth) == (390.0, 0.01, 1e8)
    assert (files.write_bandwidth, files.client_bandwidth(1)) == (2e7, 1e8)
    known = {record.key.rpartition(".")[2]: record for record in scenario.calibrated}
    assert (known["open_rate"].low, known["open_rate"].high) == ("300 1/s", "400 1/s")
    assert known["open_rate"].confidence == 0.75  # 1 - 2^(1 - 3)
    assert "still rises" in known["open_rate"].note
    assert "still rises" not in known["read_bandwidth"].note
    assert "nfs4 at /data" in known["latency"].source

    own = dataclasses.replace(rates, is_shared=False, device_share=0.1)
    path.write_text(own.to_yaml())
    assert "# Beware: only 10% of the bytes read" in own.to_yaml()
    ssd = load_scenario("quickstart", {"include": str(path)}).cluster.ssd
    assert (ssd.latency, ssd.read_bandwidth, ssd.iops(8)) == (0.01, 1e8, 390.0)


@pytest.mark.parametrize("error", [None, OSError(28, "No space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("broken", ["create_files", "write_file", "read_small_file", "read_block"])
def test_a_file_system_is_left_as_it_was(small, tmp_path, monkeypatch, broken, error):
    (tmp_path / "mine").write_text("as it was")

    def breaks(*_):
        raise error

    if error is not None:
        monkeypatch.setattr(storage, broken, breaks)
    begin = itertools.count(0.0, 1e-3).__next__
    with contextlib.nullcontext() if error is None else pytest.raises((InputError, type(error))):
        storage.probe_storage(tmp_path, 1e5, 10.0, clock=begin)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert (tmp_path / "mine").read_text() == "as it was"


def test_a_folder_that_is_full_is_refused(monkeypatch, refused):
    usage = type("Usage", (), {"free": 1.9e9})
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _: usage)
    said = "must have twice the 1 GB of --limit free; got 1.9 GB free"
    assert said in refused(["machine", "probe", "--storage", "."])


def test_the_file_system_of_a_folder_is_named(tmp_path):
    place, shared = storage.find_mount(tmp_path)
    assert " at /" in place
    assert isinstance(shared, bool)


# -------------------------------------------------------------------------------------- network


def test_an_allreduce_of_gloo_is_fitted_as_one_of_nccl(monkeypatch, capsys):
    """Of 4 ranks a ring with 100 us a step and 2 GB/s: 6 steps, and 3/2 of the bytes."""
    gloo_times = pytest.importorskip("simshuffle.train.gloo_times", reason="needs torch")
    found = {nbytes: (6 * 1e-4 + 1.5 * nbytes / 2e9, 0) for nbytes in gloo_times.SIZES}
    text = gloo_times.table([("a-host", 10 + rank) for rank in range(4)], found)
    monkeypatch.setattr(command, "time_gloo", lambda ranks: text.encode() * (ranks == 4))
    assert main(["machine", "probe", "--network", "4"]) == 0
    values = yaml.safe_load(capsys.readouterr().out)["values"]
    latency, bandwidth = (
        float(values[f"workload.allreduce.intra_host_{key}"].split()[0])
        for key in ("latency", "bus_bandwidth")
    )
    assert (latency, bandwidth) == (pytest.approx(100, rel=1e-2), pytest.approx(2, rel=1e-2))


def test_processes_that_fail_are_told_of(monkeypatch, capsys):
    pytest.importorskip("torch", reason="needs torch")
    asked = []

    def fails(command, **_):
        asked.append(command)
        return subprocess.CompletedProcess(command, 1, b"", b"Traceback\nRuntimeError: lost\n")

    monkeypatch.setattr(subprocess, "run", fails)
    assert main(["machine", "probe", "--network", "2"]) == 2
    assert "must end without an error; got RuntimeError: lost" in capsys.readouterr().err
    assert asked[0][-3:] == ["2", "-m", "simshuffle.train.gloo_times"]
