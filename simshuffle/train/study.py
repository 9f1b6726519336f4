"""Study: many training runs that differ in a few settings, read from a file."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.spec.library import (
    find_file,
    is_file,
    parse_kind,
    read_yaml,
    suggest_nearest,
    write_yaml,
)
from simshuffle.spec.overrides import (
    expand_name,
    grid,
    grid_problems,
    keys_overlap,
    pin_axis,
    sort_outermost_first,
)
from simshuffle.spec.record import Count, Spec
from simshuffle.spec.switching import PendingSwitches, warn_of_switches
from simshuffle.spec.validation import drop_reported_problems, validate_record
from simshuffle.train.data import Data
from simshuffle.train.models import Model
from simshuffle.train.partition import Partition, RandomPartition
from simshuffle.train.run import Run
from simshuffle.train.training import Training
from simshuffle.workload.exchange import TrainedExchange

MOST_RUNS = 100_000
"""The most runs of a study."""


Seed = Annotated[int, Field(ge=0)]
SeedCount = Annotated[int, Field(ge=1, le=MOST_RUNS)]


def _seed_list(value: object) -> object:
    """Return a count n of seeds as 0, 1, ..., n - 1, and a list of seeds as it is.

    Anything else is an error of the validation, also an empty list.
    """
    if type(value) is int and 1 <= value <= MOST_RUNS:
        return list(range(value))
    seeds = value if isinstance(value, list) else []
    if not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
        rule = "must be a list of whole numbers from 0, or the number of seeds"
        raise PydanticCustomError("seeds", rule)
    return value


def _block_lists(value: object) -> object:
    """Return a block with every single value as a list of one, and its count of seeds
    as seeds; what is no mapping as it is.
    """
    if not isinstance(value, dict):
        return value
    block = {
        key: _seed_list(values) if key == "seeds" else values
        for key, values in value.items()
    }
    return {
        key: values if isinstance(values, list) else [values]
        for key, values in block.items()
    }


_counted = BeforeValidator(
    _seed_list,
    json_schema_input_type=SeedCount | Annotated[list[Seed], Field(min_length=1)],
)
Seeds = Annotated[list[int], _counted]
"""Seeds; a count n stands for 0, 1, ..., n - 1."""
Block = Annotated[dict[str, list[Any]], BeforeValidator(_block_lists)]
"""Lists of values by the dotted key of a run, or 'seeds'; every combination of them is
one run.
"""


class Study(Spec):
    """Training runs of many combinations of settings.

    Attributes:
        kind: 'shuffling': strategies compared by the accuracy that they reach.
        name: of the study.
        description: in words; the report begins with it.
        data: what is learnt.
        model: the network.
        partition: who holds which sample before the first epoch.
        exchange: the strategy, of all blocks that do not say their own.
        world_size: M, ranks, of all blocks that do not say their own.
        training: how.
        cluster: machine of the ranks, by its file or name; needed only where partners
            are drawn within a host, a leaf switch or a rack.
        seeds: a list, or how many, which are 0, 1, ...; every combination is run with
            each of them.
        runs: blocks, each a product of lists by dotted key. What several blocks make is
            one run.
    """

    kind: Literal["shuffling"] = "shuffling"
    name: str
    description: str = ""
    data: Data
    model: Model
    partition: Partition = RandomPartition(kind="random")
    exchange: TrainedExchange | None = None
    world_size: Count | None = None
    training: Training = Training()
    cluster: str | None = None
    seeds: Seeds = Field(default_factory=lambda: [0])
    runs: Annotated[list[Block], Field(min_length=1)]

    def to_yaml(self) -> str:
        """Return the study as YAML, which `load_study` reads back to an equal one."""
        return as_yaml(self)

    def all_runs(self) -> list[Run]:
        """Return every run once, in the order of the blocks, and warn of values that
        were dropped with the kind that they belonged to.

        Raises:
            InputError: with the problems of all runs that are not valid, or if there
                are more than `MOST_RUNS`.
        """
        problems: list[Problem] = []
        count = sum(
            math.prod(map(len, ({"seeds": self.seeds} | block).values()))
            for block in self.runs
        )
        runs = {
            json.dumps(run.model_dump(mode="json"), sort_keys=True): run
            for run in (_expand_blocks(self, problems) if count <= MOST_RUNS else ())
        }
        if count > MOST_RUNS:
            rule = f"must make at most {MOST_RUNS:,} runs"
            problems.append(
                Problem("runs", rule, f"{count:,}", "Leave some values out.")
            )
        if problems:
            raise InputError(list(dict.fromkeys(problems)), self.name)
        return list(runs.values())


def load_study(reference: str | Path, values: Mapping[str, Any] | None = None) -> Study:
    """Read the study of a file, or a shipped one by its name below ``studies/``.

    Args:
        reference: path or name.
        values: set by dotted key, such as ``{"seeds": 3, "training.epochs": 5}``;
            blocks no longer vary these keys. Where one replaces a kind, what the new
            kind does not take is dropped, with a warning.

    Relative paths of data and cluster are those below the file's folder, if they exist.

    Raises:
        InputError: with every problem of the file and of the runs that its blocks make,
            or if there is no such file.
    """
    path = find_file(str(reference), "studies")
    raw = document(path)
    problems: list[Problem] = []
    pending = PendingSwitches(Study)
    # a record before its keys, so that setting the record does not undo them
    for key, value in sort_outermost_first(values or {}).items():
        _set(raw, key, value, problems, pending)
    switches = pending.settle(raw, values or {})
    for key in REFERENCES:
        expand_name(raw, key, REFERENCES, problems)
    locate(raw.get("data"), "path", path.parent)
    if isinstance(raw.get("cluster"), str) and is_file(path.parent / raw["cluster"]):
        raw["cluster"] = str((path.parent / raw["cluster"]).absolute())
    for index, block in enumerate(
        raw["runs"] if isinstance(raw.get("runs"), list) else []
    ):
        _normalise(block, f"runs.{index}", path.parent, problems)
    study, study_problems = validate_record(raw, Study)
    problems += drop_reported_problems(study_problems, problems)
    if study is not None:
        try:
            study.all_runs()
        except InputError as error:
            problems += drop_reported_problems(error.problems, problems)
    if problems or study is None:
        raise InputError(problems, str(path))
    warn_of_switches(switches)
    return study


def as_yaml(study: Spec) -> str:
    """Return the values of a study as YAML; those that are None are left out."""
    values = study.model_dump(mode="json", exclude_none=True)
    return write_yaml(values)


def document(path: Path) -> dict[str, Any]:
    """Return the plain values of a study's file.

    Raises:
        InputError: the file does not hold one mapping.
    """
    documents = read_yaml(path)
    if len(documents) != 1 or not isinstance(documents[0], dict):
        value = f"{len(documents)} documents"
        if len(documents) == 1:
            value = type(documents[0]).__name__
        remedy = "See studies/ for examples."
        refuse(
            "", "must hold one study, as a mapping of keys", value, remedy, str(path)
        )
    return copy.deepcopy(documents[0])


REFERENCES = dict.fromkeys(
    ("data", "model", "partition", "exchange", "exchange.schedule", "training.loss"),
    parse_kind,
)
"""Keys whose records may be named by their kind: ``exchange:
importance_pair:exchange_fraction=0.1,lagging=true``."""
_KEYS = set(Run.model_fields) - {"seed"}


# ----------------------------------------------------------------------- from raw values to a study


def _set(
    raw: dict[str, Any],
    key: str,
    value: Any,
    problems: list[Problem],
    pending: PendingSwitches,
) -> None:
    """Set the ``value`` of a dotted key, and remove the key from the blocks, which
    would set it again.

    Args:
        raw: values of the study's file; changed in place.
        key, value: what is set.
        problems: gets further ones, such as a block that sets a key above this one.
        pending: remembers records whose kind is replaced.
    """
    if pending.set_key(raw, key, value, problems, REFERENCES) and key != "runs":
        blocks = raw["runs"] if isinstance(raw.get("runs"), list) else []
        for number, block in enumerate(blocks):
            if isinstance(block, dict):
                pin_axis(block, key, value, f"runs.{number}", problems)


def _normalise(block: Any, path: str, folder: Path, problems: list[Problem]) -> None:
    """Replace records that a block names by their kind, and paths relative to the
    study.

    Args:
        block: of the file; it is changed.
        path: the block's own, for problems.
        folder: of the study.
        problems: gets further ones.
    """
    if not isinstance(block, dict):
        return
    block_problems: list[Problem] = []
    for key in [key for key in block if key in REFERENCES]:
        values = block[key] if isinstance(block[key], list) else [block[key]]
        records = [{key: copy.deepcopy(value)} for value in values]
        for record in records:
            expand_name(record, key, REFERENCES, block_problems)
            if key == "data":
                locate(record[key], "path", folder)
        block[key] = [record[key] for record in records]
    problems += [problem.below(path) for problem in block_problems]


def locate(values: Any, key: str, folder: Path) -> None:
    """Make the path ``values[key]`` absolute, in place; ``key`` is not dotted.

    Nothing happens if ``values`` is no mapping, or has no text there.

    It is below the study's ``folder`` if it exists there, else below the working
    directory; ``~`` is the home directory.
    """
    if isinstance(values, dict) and isinstance(values.get(key), str):
        path = Path(values[key]).expanduser()
        values[key] = str(
            (folder / path if (folder / path).exists() else path).absolute()
        )


def _expand_blocks(study: Study, problems: list[Problem]) -> Iterator[Run]:
    """Yield the runs of all blocks, which may be equal; append the problems of runs
    that are not valid, and of blocks, to ``problems``.

    Keys of ``study`` hold where a block does not set them.
    """
    base = study.model_dump(mode="json", exclude_none=True, include=_KEYS)
    for index, block in enumerate(study.runs):
        block_path = f"runs.{index}"
        seeds = block.get("seeds", study.seeds)
        lists = {key: values for key, values in block.items() if key != "seeds"}
        axes = {key: lists[key] for key in lists if key.split(".")[0] in _KEYS}
        valid_keys = sorted({*_KEYS, "seeds"})
        problems += [
            Problem(
                f"{block_path}.{key}",
                "is not a known key",
                "",
                suggest_nearest(key.split(".")[0], valid_keys),
            )
            for key in lists
            if key not in axes
        ]
        if list_problems := grid_problems(lists):
            problems += [problem.below(block_path) for problem in list_problems]
            continue
        # a setting is validated once for all its seeds
        for values in grid(sort_outermost_first(axes)):
            run, run_problems = _run_of(base, values)
            if run is not None and not run_problems:
                yield from (run.model_copy(update={"seed": seed}) for seed in seeds)
            problems += [
                replace(problem, path=_path_in_file(problem.path, block_path, axes))
                for problem in run_problems
            ]


def _run_of(
    base: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[Run | None, list[Problem]]:
    """Return the run of one combination, and its problems; None if it is not valid.

    Warns of values that were dropped with the kind that they belonged to.

    Args:
        base: plain values of the study that all runs share.
        values: by dotted key.
    """
    raw = copy.deepcopy(dict(base))
    problems: list[Problem] = []
    pending = PendingSwitches(Run)
    ready = all(
        pending.set_key(raw, *item, problems, REFERENCES) for item in values.items()
    )
    warn_of_switches(pending.settle(raw, values))
    if not ready or not all(
        expand_name(raw, key, REFERENCES, problems) for key in REFERENCES
    ):
        return None, problems
    return validate_record(raw, Run)


def _path_in_file(path: str, block_path: str, keys: Iterable[str]) -> str:
    """Return where in the study's file the value stands that a problem of a run's key
    comes from.

    Args:
        path: the run's dotted key.
        block_path: of the block that made the run.
        keys: dotted keys that the block sets.
    """
    from_block = any(keys_overlap(path, key) for key in keys)
    return (
        f"{block_path}.{path}"
        if from_block or path in {"exchange", "world_size"}
        else path
    )
