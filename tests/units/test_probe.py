"""simshuffle machine probe: which files are measured, what is booked where, and the fragment. No
test looks at how long anything takes: the clock is the tests' own."""

from __future__ import annotations

import io
import itertools
import sys

import pytest
import yaml
from PIL import Image

from simshuffle import probe as measuring
from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.probe import probe
from simshuffle.scenario.scenario import load_scenario

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


def test_each_action_is_booked_to_its_own_key(arrays, monkeypatch):
    now = 0.0

    def takes(seconds, action):
        def slow(*arguments):
            nonlocal now
            now += seconds
            return action(*arguments)

        return slow

    (arrays / "100.npy").unlink()
    for name, seconds in (
        ("_pickled", 2.0),
        ("_zeroed", 7.0),
    ):
        monkeypatch.setattr(measuring, name, takes(seconds, getattr(measuring, name)))
    slow = measuring.Coder(takes(5.0, bytearray), takes(3.0, bytes), len)
    monkeypatch.setattr(measuring, "ARRAYS", slow)
    costs = by_key(arrays, lambda: now)
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
    monkeypatch.setattr(measuring, "MOST_FILES", 3)
    costs = probe(clock=ticking())
    assert {cost.key for cost in costs.costs if cost.key.startswith(DATASET)} == {
        f"{DATASET}.decode",
        f"{DATASET}.encode",
    }
    assert 100_000 < costs.files.sizes[0] < 120_000
    assert "3 made JPEGs" in costs.to_yaml()


@pytest.mark.parametrize(("most", "count"), [(400, 2), (10_000, 4)])
def test_of_large_files_fewer_are_measured(tmp_path, monkeypatch, most, count):
    monkeypatch.setattr(measuring, "MOST_FILES", 4)
    monkeypatch.setattr(measuring, "FEWEST_FILES", 1)
    monkeypatch.setattr(measuring, "MOST_BYTES", most)
    for number in range(6):
        (tmp_path / f"{number}.npy").write_bytes(bytes(200))
    files = measuring.files_below(tmp_path)
    assert (len(set(files.paths)), len(files.sizes)) == (count, 6)


def test_only_so_many_files_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "MOST_LISTED", 3)
    for number in range(6):
        (tmp_path / f"{number}.npy").write_bytes(bytes(200))
    assert len(measuring.files_below(tmp_path).sizes) == 3


@pytest.mark.parametrize("suffix", [".png", ".webp", ".bmp"])
def test_images_of_other_formats_are_encoded_as_they_were(tmp_path, suffix):
    Image.effect_noise((60, 40), 10.0).save(tmp_path / f"one{suffix}")
    again = measuring.encoded(measuring.decoded((tmp_path / f"one{suffix}").read_bytes()))
    assert Image.open(io.BytesIO(again)).format == suffix[1:].upper()


def refused(folder):
    with pytest.raises(InputError) as caught:
        probe(folder)
    return str(caught.value)


def test_folders_that_cannot_be_measured_are_refused(tmp_path):
    assert "FOLDER: must be a folder of files" in refused(tmp_path / "missing")
    (tmp_path / "empty.jpg").write_bytes(b"")
    assert "FOLDER: must hold files that are not empty" in refused(tmp_path)


@pytest.mark.parametrize("keep", [0, 200])
def test_a_broken_image_is_named(images, keep):
    path = images / "class-1" / "5.jpg"
    path.write_bytes(path.read_bytes()[:keep] or b"no image")
    said = refused(images)
    assert "must hold files that can be decoded" in said
    assert str(path) in said


def test_pillow_is_needed_for_images_only(images, arrays, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    said = refused(images)
    assert "decoding images needs Pillow" in said
    assert "pip install 'simshuffle[train]'" in said
    assert f"{DATASET}.decode" in by_key(arrays)


def test_the_verb_prints_the_fragment_and_nothing_else(arrays, capsys):
    assert main(["machine", "probe", str(arrays)]) == 0
    out, err = capsys.readouterr()
    assert set(yaml.safe_load(out)) == {"values", "calibrated"}
    assert err == ""
    assert main(["machine", "probe", str(arrays), "--exchange"]) == 0
    assert f"{SCHEDULE}.read" in yaml.safe_load(capsys.readouterr().out)["values"]
    assert main(["machine", "probe", str(arrays / "missing")]) == 2
