"""Studies: what a file says, which runs it makes, and what they are called."""

import json
import re
from pathlib import Path
from typing import get_args

import pytest
import yaml

from simshuffle.spec.library import shipped_names
from simshuffle.studies.training.tables import DESCRIPTION_COLUMNS, STRATEGIES
from simshuffle.train import shuffling
from simshuffle.train.study import Study, load_study
from simshuffle.train.training import Training

DATA = Path(__file__).parents[1] / "data"
BASE = json.loads((DATA / "study.json").read_text())
NAMES = yaml.safe_load((DATA / "study_names.yaml").read_text())


@pytest.fixture
def study(tmp_path):
    """Writes a study with other values than `BASE` and reads it."""

    def load(values=None, **changes):
        path = tmp_path / "study.yaml"
        path.write_text(yaml.safe_dump(BASE | changes), encoding="utf-8")
        return load_study(path, values)

    return load


def settings(study):
    return [
        (run.exchange.kind, run.exchange.fraction, run.world_size, run.seed)
        for run in study.all_runs()
    ]


# ---------------------------------------------------------------------------------- the reference


def rows(title):
    """Those of a table of docs/reference/study-keys.md: key, value, default, range, meaning."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "study-keys.md"
    found = re.search(
        rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)",
        page.read_text("utf-8"),
        re.DOTALL | re.MULTILINE,
    )
    return [line[2:-2].split(" | ") for line in found[1].splitlines() if line.startswith("| `")]


def test_every_key_of_training_is_documented_with_its_default():
    found = rows("training")
    assert [cells[0].strip("`") for cells in found] == list(Training.model_fields)
    defaults = Training().model_dump(mode="json")
    shown = {cells[0].strip("`"): cells[2].strip("`") for cells in found}
    left_out = {key for key, default in shown.items() if not default}
    assert left_out == {
        "sync_ranks",
        "statistics_momentum",
        "loss",
        "statistics",
        "recalibration_samples",
    }  # in words
    for key in shown.keys() - left_out:
        assert yaml.safe_load(shown[key]) == defaults[key], key
    for name, value, *_ in found:  # every choice of a key is named
        annotation = Training.model_fields[name.strip("`")].annotation
        choices = [choice for choice in get_args(annotation) if isinstance(choice, str)]
        assert all(f"`{choice}`" in value for choice in choices), name


def test_every_key_of_a_study_is_documented():
    found = {cells[0].strip("`") for cells in rows("kind: shuffling")}
    assert found == Study.model_fields.keys() - {"kind"}


# --------------------------------------------------------------------------------------------- runs


def test_a_block_is_a_product_and_every_combination_has_every_seed(study):
    kinds = [("global_shuffle", None), ("local_shuffle", 0.0)]
    expected = {(kind, fraction, m, s) for kind, fraction in kinds for m in (4, 8) for s in (0, 1)}
    found = settings(study())
    assert len(found) == 8
    assert set(found) == expected


def test_dotted_keys_are_set_in_the_strategy_that_is_named(study):
    block = {
        "exchange.exchange_fraction": [0.1, 0.3],
        "exchange": ["importance_pair:lagging=true"],
        "world_size": 4,
        "training.batch_norm": "none",
    }
    runs = study(runs=[block]).all_runs()
    assert [run.exchange.fraction for run in runs] == [0.1, 0.1, 0.3, 0.3]
    assert all(run.exchange.lagging and run.training.batch_norm == "none" for run in runs)


def test_what_several_blocks_make_is_one_run(study):
    blocks = [
        {"exchange": ["global_shuffle", "local_shuffle"], "world_size": [4, 8]},
        {"exchange": [{"kind": "local_shuffle"}], "world_size": 8, "training.epochs": [2, 3]},
    ]
    assert len(study(runs=blocks).all_runs()) == 8 + 2


def test_a_block_may_have_seeds_of_its_own(study):
    blocks = [
        {"exchange": "local_shuffle", "world_size": 4, "seeds": 3},
        {"exchange": "local_shuffle", "world_size": 8, "seeds": [7]},
    ]
    assert [(run.world_size, run.seed) for run in study(runs=blocks).all_runs()] == [
        (4, 0),
        (4, 1),
        (4, 2),
        (8, 7),
    ]


def test_values_from_the_command_line_take_the_place_of_those_of_blocks(study):
    loaded = study({"world_size": 2, "seeds": [5], "training.epochs": 1, "model.layers": 1})
    assert settings(loaded) == [("global_shuffle", None, 2, 5), ("local_shuffle", 0.0, 2, 5)]
    assert all(run.training.epochs == 1 and run.model.layers == 1 for run in loaded.all_runs())


def shuffling_studies():
    texts = {
        name: (Path(__file__).parents[2] / "studies" / f"{name}.yaml").read_text()
        for name in shipped_names("studies")
    }
    return [
        name
        for name, text in texts.items()
        if yaml.safe_load(text).get("kind", "shuffling") == "shuffling"
    ]


@pytest.mark.parametrize("name", shuffling_studies())
def test_a_shipped_study_is_read_back_as_an_equal_one_and_written_alike(name, tmp_path):
    loaded = load_study(name)
    (tmp_path / "again.yaml").write_text(loaded.to_yaml())
    again = load_study(tmp_path / "again.yaml")
    assert again == loaded
    assert again.to_yaml() == loaded.to_yaml()
    assert loaded.name == name
    assert loaded.description


def test_a_path_is_looked_for_beside_the_study_first(study, tmp_path):
    (tmp_path / "pictures").mkdir()
    loaded = study(data={"kind": "cifar10", "path": "pictures"})
    assert loaded.data.path == str(tmp_path / "pictures")


# -------------------------------------------------------------------------------------------- names


def test_strategies_have_the_names_of_the_papers(study):
    exchanges = {
        "global": "global_shuffle",
        "local": "local_shuffle",
        "partial": "partial_local_shuffle:exchange_fraction=0.1",
        "IS": "importance_exchange:exchange_fraction=0.1",
        "ILag": "importance_exchange:exchange_fraction=0.1,lagging=true",
        "IS-Pair": "importance_pair:exchange_fraction=0.1",
        "ILag-Pair": "importance_pair:exchange_fraction=0.1,lagging=true",
        "IS (selection=highest)": "importance_exchange:exchange_fraction=0.1,selection=highest",
        "partial (selection=oldest)": (
            "partial_local_shuffle:exchange_fraction=0.1,selection=oldest"
        ),
    }
    runs = study(seeds=1, runs=[{"exchange": list(exchanges.values()), "world_size": 4}]).all_runs()
    labels = [shuffling.strategy_label(run.exchange) for run in runs]
    assert labels == list(exchanges)
    assert set(STRATEGIES) < set(labels)


def test_the_shipped_studies_have_the_names_of_the_papers():
    """By these names strategies have their colours, and the three claims find what they compare."""
    for name in ("default", "fractions"):
        descriptions = described(load_study(name))
        assert {of["strategy"] for of in descriptions} <= set(STRATEGIES)


def described(study):
    return list(shuffling.request(study, "cpu").values.descriptions.values())


@pytest.mark.parametrize("case", NAMES, ids=lambda case: case["about"])
def test_runs_are_called_by_what_differs_between_them(study, case):
    runs = described(study(seeds=1, runs=case["blocks"]))
    (name,) = case.keys() & {"strategy", "variant"}
    found = [of[name] for of in runs]
    assert (list(dict.fromkeys(found)) if name == "strategy" else found) == case[name]
    assert all(list(of) == list(DESCRIPTION_COLUMNS) for of in runs)


def test_variants_say_how_many_ranks_normalise_together(study):
    """Batch norm is 'sync' in tables whether groups are of four ranks or of all."""
    of_four = {"training.batch_norm": ["sync"], "training.sync_ranks": 4}
    blocks = [
        {"exchange": ["global_shuffle"], "world_size": [4, 8], **more}
        for more in ({}, of_four, {"training.batch_norm": ["sync"]})
    ]
    for some in (blocks, blocks[:2]):  # beside all ranks, and alone beside each by itself
        found = {
            (each["batch_norm"], each["variant"]) for each in described(study(seeds=1, runs=some))
        }
        whole = {("sync", "")} if len(some) == 3 else set()
        assert found == {("per_rank", ""), ("sync", "sync_ranks=4"), *whole}


def test_strategies_name_the_pass_that_measures_importance_and_variants_the_momentum():
    of = described(load_study("importance-pass", {"seeds": 1}))
    known = {"global", "local", "partial", "IS", "IS (importance_pass=train)"}
    found = {
        momentum: {each["strategy"] for each in of if each["variant"] == momentum}
        for momentum in (f"statistics_momentum={value}" for value in (0.01, 0.1, 0.5))
    }
    assert len(of) == 15
    assert all(strategies == known for strategies in found.values())


def test_the_same_run_has_the_same_name_in_every_study(study):
    names = set(shuffling.cells_of(study(), "cpu"))
    more = {
        "exchange": [
            "global_shuffle",
            "local_shuffle",
            "partial_local_shuffle:exchange_fraction=0.5",
        ],
        "world_size": [4, 8],
    }
    assert names < set(shuffling.cells_of(study(runs=[more], seeds=3, name="other"), "cpu"))
    assert not names & set(shuffling.cells_of(study({"training.momentum": 0.8}), "cpu"))
    assert not names & set(shuffling.cells_of(study(), "cuda"))
    assert set(shuffling.cells_of(study(), "cuda")) == set(shuffling.cells_of(study(), "cuda:1"))
