"""docs/accuracy.md: its tables are those of docs/data/real-images.csv, whose predictions are those
that were sealed before anything was run."""

import csv
import json
import math
import re
from pathlib import Path
from statistics import fmean

import pytest

from simshuffle.extensions.calibration.validation.sealed import compute_digest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "accuracy.md").read_text()
SEALED = ROOT / "validation" / "sealed" / "accuracy" / "2026-11-28.json"
KEYS = ("model", "partition", "world_size", "local_batch_size", "strategy")
NAMES = {"perceptron": "mlp", "small CNN": "small_cnn", "ResNet-8": "resnet", "ViT": "vit"}
PREDICTED = ("n", "n_global", "law", "law_low", "law_high", "screened", "screened_low")


def rows():
    with (ROOT / "docs" / "data" / "real-images.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def tables():
    """The rows of all tables of the page, each as its cells."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_predictions_are_those_that_were_sealed():
    found = json.loads(SEALED.read_text())
    assert compute_digest(found["content"]) == found["sha256"]
    assert found["sha256"][:16] in PAGE
    of = {tuple(str(row[key]) for key in KEYS): row for row in found["content"]["predictions"]}
    assert len(of) == 84
    compared = [row for row in rows() if row["law"]]
    assert len(compared) > 50
    for row in compared:
        sealed = of[tuple(row[key] for key in KEYS)]
        for name in PREDICTED:
            known = None if row[name] == "" else float(row[name])
            assert known == pytest.approx(sealed[name], abs=6e-4), (row, name)


def test_the_coverage_is_that_of_the_table():
    """Shards, network, settings, largest loss, how many lie within, and the root mean square of
    predicted less measured, by law and by screening."""
    compared = [row for row in rows() if row["law"]]
    seen = 0
    for cells in tables():
        if len(cells) != 6 or not re.fullmatch(r"\d+ \([\d.]+\)", cells[4]):
            continue
        model = NAMES.get(cells[1])
        of = [
            row
            for row in compared
            if row["partition"] == cells[0] and model in {None, row["model"]}
        ]
        assert int(cells[2]) == len(of), cells
        assert float(cells[3]) == pytest.approx(max(float(row["lost_own"]) for row in of), abs=0.06)
        for cell, way in ((cells[4], "law"), (cells[5], "screened")):
            inside = sum(
                float(row[f"{way}_low"]) <= float(row["lost_own"]) <= float(row[f"{way}_high"])
                for row in of
            )
            error = math.sqrt(fmean((float(row[way]) - float(row["lost_own"])) ** 2 for row in of))
            assert cell == f"{inside} ({error:.2f})", cells
        seen += 1
    assert seen >= 4


def test_numbers_of_the_table_that_the_page_names():
    """Every 'lost X ± Y' row: shards, network, ranks, strategy, loss and half an interval."""
    by = {(*(row[key] for key in KEYS), row["training"]): row for row in rows()}
    seen = 0
    for cells in tables():
        if len(cells) < 5 or not re.fullmatch(r"-?[\d.]+ ± [\d.]+", cells[4]):
            continue
        shards, model, ranks, strategy, said = cells[:5]
        name, _, training = strategy.partition("; ")
        batch = "16" if training == "batch 16" else "8"
        training = "" if training == "batch 16" else training
        row = by[NAMES[model], shards, ranks, batch, name, training]
        lost, reach = (float(part) for part in said.split(" ± "))
        assert lost == pytest.approx(float(row["lost_own"]), abs=0.051), cells
        assert reach == pytest.approx(float(row["reach"]), abs=0.051), cells
        if len(cells) > 5:
            assert float(cells[5]) == pytest.approx(float(row["lost_pooled"]), abs=0.051), cells
        seen += 1
    assert seen >= 6
