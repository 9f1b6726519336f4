"""Every field of a cell that changes its outcome changes its key, or a store would hand out the
outcome of another cell. All classes of cells and all their fields are varied; new ones are missed
by name until they are listed in `tests.cells`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simshuffle.study.cell import Outcome, PlainCell
from simshuffle.train.cell import TrainingCell
from tests.cells import EXAMPLES, NAMES, Example, changed, kinds_of_cells, leaves


def test_every_kind_of_cell_is_varied() -> None:
    assert kinds_of_cells() == set(EXAMPLES)


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_what_changes_an_outcome_changes_the_key(kind: type) -> None:
    example = EXAMPLES[kind]()
    assert set(leaves(example.cell)) == example.listed | example.idle, "fields that are not varied"
    before = outcome_of(example, example.cell)
    for names, values in example.others.items():
        other = changed(example.cell, names, values)
        if example.runs and names not in example.unseen:
            after = outcome_of(example, other)
            assert not serves(before, other, after), f"{names}: the same outcome"
        served = plain(other.key) == plain(example.cell.key) and parts(before) >= other.parts
        assert not served, f"{names}: another outcome, and the same key"
    for name in example.idle & set(NAMES) if example.runs else ():
        other = changed(example.cell, name, NAMES[name])
        assert serves(before, other, outcome_of(example, other)), f"{name} changes the outcome"


def test_a_training_on_the_machine_of_a_file_is_known_by_where_its_ranks_are(
    tmp_path: Path,
) -> None:
    machine = Path(__file__).parents[2] / "topologies" / "small-fat-tree.yaml"
    keys = []
    for gpus in (1, 2):
        text = machine.read_text(encoding="utf-8").replace("gpus: 1", f"gpus: {gpus}")
        (path := tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
        cell = EXAMPLES[TrainingCell]().cell
        run = cell.training_run.model_copy(update={"cluster": str(path)})
        keys.append(replace(cell, training_run=run).key)
    assert keys[0] != keys[1]
    path.unlink()
    assert replace(cell, training_run=run).key not in keys  # and a result of it can still be read


def outcome_of(example: Example, cell: PlainCell) -> Outcome:
    return cell.run(lambda _: None) if example.runs else Outcome()


def plain(value: Any) -> str:
    """As `simshuffle.study.cell.digest_of` writes a key."""
    return json.dumps(value, sort_keys=True, default=float)


def parts(outcome: Outcome) -> set[str]:
    return {f"{name}.parquet" for name in outcome.tables} | set(outcome.files)


def serves(stored: Outcome, cell: PlainCell, own: Outcome) -> bool:
    """Whether a stored outcome stands for a cell's ``own``: its values, and all of its parts."""
    if plain(stored.values) != plain(own.values) or not cell.parts <= parts(stored):
        return False
    tables = [name.removesuffix(".parquet") for name in cell.parts if name.endswith(".parquet")]
    return all(stored.tables[name].equals(own.tables[name]) for name in tables) and all(
        stored.content(name) == own.content(name) for name in cell.parts & set(stored.files)
    )
