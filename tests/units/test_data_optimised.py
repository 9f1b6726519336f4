"""Data-optimised training: what is noise, what is trained on, what is said about it, and that a
study goes on where it stood."""

import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from simshuffle.errors import InputError, SimulationError
from simshuffle.extensions.learning.filtering.cells import (
    ExtractionCell,
    draw_random_filter,
    evaluate_network,
    find_noise,
    one_rank_run,
    project_features,
    train_network,
)
from simshuffle.extensions.learning.filtering.record import (
    DataOptimisedStudy,
    Extractor,
    Projection,
    load_study,
)
from simshuffle.extensions.learning.filtering.request import (
    extraction_cells,
    request,
    retraining_cells,
)
from simshuffle.extensions.learning.filtering.study import STUDY
from simshuffle.extensions.learning.filtering.tables import (
    FILTER_COLUMNS,
    STORED,
    SUMMARY_COLUMNS,
    FilterTables,
    best_rates,
    filter_row,
    summary,
)
from simshuffle.extensions.learning.filtering.text import parts
from simshuffle.studies.training.wording import join_report
from simshuffle.study import engine
from simshuffle.study.executors import SerialExecutor
from simshuffle.study.store import Disk, Lost
from simshuffle.train.data import Digits
from simshuffle.train.emulate import initial_model

torch.set_num_threads(1)
ROOT = Path(__file__).parent.parent.parent
DATA = ROOT / "tests" / "data" / "filtering"
RAW = yaml.safe_load((DATA / "tiny.yaml").read_text())
MLP = RAW["extractors"][0]["model"]
RUNS = pd.read_csv(DATA / "runs.csv", keep_default_na=False)
"""Runs by subset, batch size and rate: one for each of three seeds."""


def study(**changes):
    return DataOptimisedStudy.model_validate(RAW | changes)


def extractor(**keys):
    return Extractor.model_validate(RAW["extractors"][0] | keys)


def no_word(share):
    pass


# ------------------------------------------------------------------------------------------ filters


def test_noise_is_what_lies_outside_the_clusters_of_its_own_class():
    """Five points of class 0 at distance 0.4 make a cluster with eps 0.5, min_samples 3; its ends
    have two neighbours, but touch a core."""
    row = [(0.4 * i, 0.0) for i in range(5)]
    points = np.array(
        [*row, (50.0, 0.0), (50.4, 0.0), (0.8, 0.1), (80.0, 0.0), (80.0, 0.4), (80.4, 0.0)]
    )
    # two of class 0 far away; one of class 1 among those of class 0
    labels = np.array([0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1])
    assert find_noise(points, labels, 0.5, 3).tolist() == [False] * 5 + [True] * 3 + [False] * 3
    assert find_noise(points, labels, 0.3, 3).all()
    assert not find_noise(points, labels, 100.0, 3).any()
    assert (
        find_noise(points, labels, 100.0, 5).tolist() == [False] * 7 + [True] * 4
    )  # class 1 has four


def test_a_random_filter_leaves_out_as_many_as_it_should_and_depends_on_the_seed():
    out = draw_random_filter(100, 17, 3)
    assert out.sum() == 17
    assert np.array_equal(out, draw_random_filter(100, 17, 3))
    assert not np.array_equal(out, draw_random_filter(100, 17, 4))
    assert draw_random_filter(100, 0, 3).sum() == 0


# --------------------------------------------------------------------------------------- extraction


@pytest.mark.parametrize(
    "model",
    [MLP, {"kind": "small_cnn", "width": 4}, {"kind": "resnet", "depth": 8}],
    ids=lambda m: m["kind"],
)
def test_features_are_what_goes_into_the_head(model):
    data = Digits(kind="digits", test_share=0.8).load()
    run = one_rank_run(Digits(kind="digits", test_share=0.8), extractor(model=model), 0)
    network = initial_model(run, data).eval()
    features, losses, right = evaluate_network(network, data, data.train)
    with torch.no_grad():
        logits = network(torch.from_numpy(data.train.inputs))
        again = torch.from_numpy(features) @ network.head.weight.T + network.head.bias
    assert torch.allclose(logits, again, atol=1e-5)
    targets = torch.from_numpy(data.train.targets)
    assert losses == pytest.approx(
        torch.nn.functional.cross_entropy(logits, targets, reduction="none").numpy(), abs=1e-5
    )
    assert np.array_equal(right, (logits.argmax(1) == targets).numpy())


def test_clusters_in_features_are_clusters_in_the_plane():
    """Three balls in 20 dimensions, far apart: in the plane every point's nearest neighbours are of
    its own ball."""
    rng = np.random.default_rng(0)
    which = np.repeat([0, 1, 2], 40)
    features = rng.standard_normal((120, 20)) + 30 * np.eye(20)[which]
    points, facts = project_features(features, Projection(pca_components=5, perplexity=10), 0)
    assert points.shape == (120, 2)
    distance = np.hypot(*(points[:, None] - points[None]).T) + 1e9 * np.eye(120)
    assert (which[distance.argmin(0)] == which).all()
    assert facts["components"] == 5
    # the centres span two dimensions: 2/3 of 900 against 20
    assert 0.9 < facts["explained_variance"] < 1
    assert np.array_equal(
        points, project_features(features, Projection(pca_components=5, perplexity=10), 0)[0]
    )


@pytest.mark.parametrize(
    ("features", "says"),
    [
        (np.ones((50, 4)), "learnt nothing"),
        (np.full((50, 4), np.nan), "not finite"),
        (np.eye(20), "projection.perplexity: must be below the number of samples, 20; got 30"),
    ],
)
def test_features_that_cannot_be_projected_are_refused(features, says):
    with pytest.raises((SimulationError, InputError), match=says):
        project_features(features, Projection(), 0)


def test_weights_of_a_file_take_the_place_of_training(tmp_path):
    record = Digits(kind="digits", test_share=0.8)
    data = record.load()
    run = one_rank_run(record, extractor(), 5)
    network = train_network(run, data, None, no_word)
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    other = train_network(
        one_rank_run(record, extractor(), 6), data, str(tmp_path / "weights.pt"), no_word
    )
    assert np.array_equal(
        evaluate_network(network, data, data.test)[0], evaluate_network(other, data, data.test)[0]
    )
    (tmp_path / "broken.pt").write_bytes(b"no weights")
    torch.save({"wrong": torch.zeros(3)}, tmp_path / "foreign.pt")
    for name in ("broken.pt", "foreign.pt", "missing.pt"):
        with pytest.raises(InputError, match=r"must be weights of the network[\s\S]*torch.save"):
            train_network(run, data, str(tmp_path / name), no_word)


def test_wrong_labels_are_what_the_filter_finds():
    """Of 718 digits a tenth has wrong labels, which a short training does not learn: nearly all of
    them, and few others, are noise."""
    record = Digits(kind="digits", test_share=0.6, label_noise=0.1)
    wrong = (
        record.load().train.targets != Digits(kind="digits", test_share=0.6).load().train.targets
    )
    cnn = extractor(
        model={"kind": "small_cnn"},
        training={"epochs": 8, "local_batch_size": 64, "learning_rate": 0.1},
    )
    cell = ExtractionCell(record, cnn, Projection(pca_components=30), 0, len(wrong))
    table = cell.run(no_word).tables["points"]
    out = find_noise(table[["x", "y"]].to_numpy(), table["label"].to_numpy(), 3.0, 5)
    assert wrong.sum() == 72
    assert out[wrong].mean() > 0.9
    assert out[~wrong].mean() < 0.1


# ------------------------------------------------------------------------------------------ studies


def test_retraining_is_ordinary_training_on_the_three_data_sets():
    out = {0: np.arange(359) < 40, 1: np.arange(359) < 20}
    jobs = retraining_cells(study(), out)
    assert len(jobs) == 2 * 3 * 2  # batch sizes, data sets, seeds
    for job in jobs.values():
        about, run = job.description, job.training_run
        assert run.world_size == 1
        assert run.training.local_batch_size == about["batch_size"]
        assert run.training.batch_norm == "per_rank"  # one rank, so over the whole batch
        left = 359 - (0 if about["subset"] == "full" else int(out[about["seed"]].sum()))
        assert (
            about["num_samples"]
            == left
            == (359 if job.retained_samples is None else len(job.retained_samples))
        )
    # the largest: what is left with seed 0
    assert {job.description["batch_size"] for job in jobs.values()} == {32, 319}
    network = next(job for name, job in jobs.items() if name.startswith("network_b32_lr0.1_s0"))
    assert network.retained_samples.tolist() == list(range(40, 359))
    chance = next(job for name, job in jobs.items() if name.startswith("random_b32_lr0.1_s0"))
    assert 0 < len(set(chance.retained_samples) & set(range(40))) < 40


@pytest.mark.parametrize(
    ("left", "says"),
    [
        (0, r"clustering.eps: must leave samples; got 8 leaves none[\s\S]*Raise"),
        (30, "retrain.batch_sizes: must not exceed the 30 samples that the filter leaves; got 32"),
    ],
)
def test_a_filter_that_leaves_too_few_samples_is_refused(left, says):
    with pytest.raises(InputError, match=says):
        retraining_cells(study(), {0: np.arange(359) >= left, 1: np.zeros(359, bool)})


def test_a_study_is_read_from_its_file_with_values_set(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(study(data={"kind": "cifar10", "path": "set"}).to_yaml())
    (tmp_path / "set").mkdir()
    values = {
        "seeds": 3,
        "retrain.training.epochs": 7,
        "extractors.0.model": "small_cnn:width=8",
        "clustering.eps": 1,
    }
    read = load_study(path, values)
    assert read.data.path == str(tmp_path / "set")
    assert read.seeds == [0, 1, 2]
    assert read.retrain.training.epochs == 7
    assert read.extractors[0].model.width == 8
    path.write_text(read.to_yaml())
    assert load_study(path) == read


@pytest.mark.parametrize("name", ["data-optimised-digits", "data-optimised-cifar10"])
def test_shipped_studies_can_be_read(name):
    assert load_study(ROOT / "studies" / f"{name}.yaml").name == name


def test_a_fingerprint_of_an_extraction_does_not_depend_on_the_clustering():
    assert list(extraction_cells(study(), 359)) == list(
        extraction_cells(study(clustering={"eps": 1.0}), 359)
    )
    assert list(extraction_cells(study(), 359)) != list(
        extraction_cells(study(projection={"pca_components": 5}), 359)
    )
    assert len(extraction_cells(study(independent_filters=False), 359)) == 1


# ------------------------------------------------------------------------------------------- tables


def test_differences_are_paired_by_seed_and_the_rate_is_chosen_on_the_full_data():
    """Network less random at batch 16: 4, 5, 3 points: mean 4, standard error 1 / sqrt 3,
    t_0.975(2) = 4.3027."""
    assert best_rates(RUNS) == {16: 0.1, 64: 0.4}
    table = summary(RUNS)
    assert list(table.columns) == list(SUMMARY_COLUMNS)
    assert table.loc[table["chosen"], "batch_size"].tolist() == [16, 16, 16, 64, 64, 64]
    row = table[(table["subset"] == "network") & (table["batch_size"] == 16)].iloc[0]
    assert row["random_difference"] == pytest.approx(0.04)
    assert row["random_high"] - row["random_difference"] == pytest.approx(
        0.043027 / math.sqrt(3), rel=1e-4
    )
    assert row["full_difference"] == pytest.approx(0.02)
    t = 0.04 / (0.01 / math.sqrt(3))
    # Student's distribution with two degrees of freedom in closed form
    p = 2 * (0.5 - t / (2 * math.sqrt(2 + t * t)))
    assert row["random_p"] == pytest.approx(p)
    assert row["random_p_holm"] == pytest.approx(2 * p)  # the smaller one of two batch sizes
    full = table[table["subset"] == "full"]
    assert full["full_pairs"].tolist() == full["random_pairs"].tolist() == [0, 0, 0]


def test_runs_that_failed_are_left_out_and_named():
    runs = RUNS.copy()
    runs.loc[3, ["status", "message"]] = ["failed", "the loss is not finite: epoch 2"]
    row = summary(runs)[lambda t: (t["subset"] == "network") & (t["batch_size"] == 16)].iloc[0]
    assert row["seeds"] == row["random_pairs"] == 2
    text = join_report(
        parts(
            FilterTables(*(STORED[name].empty() for name in ("filters", "eps", "points")), runs), {}
        )
    )
    assert "network-16-0.1-0 (failed): the loss is not finite: epoch 2" in " ".join(text.split())


# ------------------------------------------------------------------------------------ whole studies


def whole(**changes):
    """A study whose filters leave a few samples out with both seeds."""
    return study(**({"clustering": {"eps": 4.0, "eps_table": [0.5, 8.0]}} | changes))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    place, standings = tmp_path_factory.mktemp("study"), []
    store = Disk(place / ".cells")
    result = engine.run(STUDY, request(whole()), SerialExecutor(), store, standings.append)
    return result.save(place / "out"), FilterTables(**result.tables), standings


def test_a_study_trains_every_seed_on_what_its_filter_leaves(done):
    _, tables, standings = done
    runs, filters, eps = tables.runs, tables.filters, tables.eps.set_index("eps")["reduction"]
    assert runs["status"].tolist() == ["done"] * 12
    assert filters["num_samples"].tolist() == [180, 180]
    left = dict(zip(filters["seed"], 180 - filters["removed"], strict=True))
    wanted = runs["seed"].map(left).where(runs["subset"] != "full", 180)
    assert runs["num_samples"].tolist() == wanted.tolist()
    assert standings[-1].done == standings[-1].total == 12
    assert standings[-1].share == pytest.approx(1)
    assert list(dict.fromkeys(standing.total for standing in standings)) == [2, 12]
    assert eps[0.5].min() > eps[8.0].max()


def test_what_is_done_is_kept_and_another_clustering_extracts_nothing_anew(done, tmp_path):
    folder, tables, _ = done
    shutil.copytree(folder.parent / ".cells", tmp_path / "cells")
    store = Disk(tmp_path / "cells")
    before = set(store.digests())
    assert len(before) == 14
    result = engine.run(STUDY, request(whole()), SerialExecutor(), store)
    pd.testing.assert_frame_equal(result.tables["runs"], tables.runs)
    assert set(store.digests()) == before
    engine.run(STUDY, request(whole(clustering={"eps": 3.0, "eps_table": []})), _OnlyRuns(), store)
    assert before < set(store.digests())


class _OnlyRuns(SerialExecutor):
    """Does no extractions."""

    def do(self, cells, store, watch):
        assert not any(isinstance(cell, ExtractionCell) for cell in cells.values())
        yield from super().do(cells, store, watch)


class _Losing(SerialExecutor):
    """Loses the cells whose label begins with ``start``."""

    def __init__(self, start):
        super().__init__()
        self.start = start

    def do(self, cells, store, watch):
        self.lost |= {d: Lost("killed") for d, c in cells.items() if c.label.startswith(self.start)}
        kept = {digest: cell for digest, cell in cells.items() if digest not in self.lost}
        yield from super().do(kept, store, watch)


def test_without_a_run_there_is_a_result_and_without_the_filter_there_is_none(done, tmp_path):
    store = Disk(tmp_path / "cells")
    result = engine.run(STUDY, request(whole()), _Losing("network_b32"), store)
    assert result.meta["state"] == "incomplete"
    assert sorted(result.meta["lost"].values()) == ["killed"] * 2
    runs = result.tables["runs"].set_index("status")
    assert set(runs.loc["lost", "subset"]) == {"network"}
    assert set(runs.loc["lost", "message"]) == {"killed"}
    assert len(runs.loc["done"]) == 10
    with pytest.raises(SimulationError, match=r"network of the filter was lost[\s\S]*killed"):
        engine.run(STUDY, request(whole()), _Losing("mlp_s1"), Disk(tmp_path / "other"))


def test_a_filter_that_leaves_too_few_says_what_others_leave_out(done):
    folder, _, _ = done
    few = whole(clustering={"eps": 0.001, "eps_table": [8.0]})
    with pytest.raises(
        InputError, match=r"must leave samples[\s\S]*100 % at eps 0.001, [\d.]+ % at eps 8"
    ):
        engine.run(STUDY, request(few), SerialExecutor(), Disk(folder.parent / ".cells"))


def test_the_smallest_class_that_a_filter_leaves_is_counted_by_labels():
    """Of 4, 3 and 1 samples of three classes, one of the first and both right ones of the second
    are left out: 3, 1 and 1 are left. Of a class of which nothing is left, 0."""
    points = pd.DataFrame({"label": [0] * 4 + [1] * 3 + [2], "right": [1, 0, 1, 1, 1, 1, 0, 1]})
    facts = dict.fromkeys(FILTER_COLUMNS, 0.0)
    noise = [True, False, False, False, True, True, False, False]
    row = filter_row(facts, points, noise, used=True)
    assert (row["removed"], row["smallest_class"]) == (3, 1)
    assert (row["noise_accuracy"], row["kept_accuracy"]) == (1.0, pytest.approx(3 / 5))
    noise[-1] = True
    assert filter_row(facts, points, noise, used=True)["smallest_class"] == 0
