"""Study: many training runs that differ in a few things, read from a file."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.spec.library import find_file, is_file, parse_kind, read_yaml, suggest_nearest
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


Seed = Annotated[int, Field(ge=0)]
SeedCount = Annotated[int, Field(ge=1, le=MOST_RUNS)]


def _seed_list(value: object) -> object:
    if type(value) is int and 1 <= value <= MOST_RUNS:
        return list(range(value))
    seeds = value if isinstance(value, list) else []
    if not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
        rule = "must be a list of whole numbers from 0, or how many there are"
        raise PydanticCustomError("seeds", rule)
    return value


def _block(value: object) -> object:
    """A block with every single value as a list of one, and its count of seeds as seeds."""
    if not isinstance(value, dict):
        return value
    listed = {key: _seed_list(each) if key == "seeds" else each for key, each in value.items()}
    return {key: each if isinstance(each, list) else [each] for key, each in listed.items()}


_counted = BeforeValidator(
    _seed_list, json_schema_input_type=SeedCount | Annotated[list[Seed], Field(min_length=1)]
)
Seeds = Annotated[list[int], _counted]
"""Seeds; a count n stands for 0, 1, ..., n - 1."""
Block = Annotated[dict[str, list[Any]], BeforeValidator(_block)]
"""Values by the dotted key of a run, of every combination of which one is made; or by 'seeds'."""


class Study(Spec):
    """Runs of many combinations.

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
        cluster: machine of the ranks, by its file or name; needed only where partners are drawn
            within a host, a leaf switch or a rack.
        seeds: a list, or how many, which are 0, 1, ...; every combination is run with each of them.
        runs: blocks, each a product of lists by dotted key. What several blocks make is one run.
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
        """The study as YAML that `load_study` reads back to an equal one."""
        return as_yaml(self)

    def all_runs(self) -> list[Run]:
        """Every run once, in the order of the blocks, or raise InputError with all that are not
        valid."""
        problems: list[Problem] = []
        listed = sum(
            math.prod(map(len, ({"seeds": self.seeds} | block).values())) for block in self.runs
        )
        runs = {
            json.dumps(run.model_dump(mode="json"), sort_keys=True): run
            for run in (_expanded(self, problems) if listed <= MOST_RUNS else ())
        }
        if listed > MOST_RUNS:
            rule = f"must make at most {MOST_RUNS:,} runs"
            problems.append(Problem("runs", rule, f"{listed:,}", "Leave some values out."))
        if problems:
            raise InputError(list(dict.fromkeys(problems)), self.name)
        return list(runs.values())


def load_study(reference: str | Path, values: Mapping[str, Any] | None = None) -> Study:
    """The study of a file, or of a shipped one by its name below ``studies/``, with ``values`` set
    by dotted key, such as ``{"seeds": 3, "training.epochs": 5}``, which blocks no longer vary; or
    raise InputError with every problem of the file and of the runs that its blocks make."""
    path = find_file(str(reference), "studies")
    raw = document(path)
    problems: list[Problem] = []
    left = PendingSwitches(Study)
    for key, value in sort_outermost_first(values or {}).items():
        _set(raw, key, value, problems, left)
    switches = left.settle(raw, values or {})
    for key in REFERENCES:
        expand_name(raw, key, REFERENCES, problems)
    locate(raw.get("data"), "path", path.parent)
    if isinstance(raw.get("cluster"), str) and is_file(path.parent / raw["cluster"]):
        raw["cluster"] = str((path.parent / raw["cluster"]).absolute())
    for number, block in enumerate(raw["runs"] if isinstance(raw.get("runs"), list) else []):
        _normalise(block, f"runs.{number}", path.parent, problems)
    study, found = validate_record(raw, Study)
    problems += drop_reported_problems(found, problems)
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
    """The values of a study as YAML."""
    values = study.model_dump(mode="json", exclude_none=True)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=130)


def document(path: Path) -> dict[str, Any]:
    """The plain values of a study's file, or raise InputError if it does not hold one mapping."""
    documents = read_yaml(path)
    if len(documents) != 1 or not isinstance(documents[0], dict):
        several = f"{len(documents)} documents"
        given = type(documents[0]).__name__ if len(documents) == 1 else several
        remedy = "See studies/ for examples."
        refuse("", "must hold the mapping of one study", given, remedy, str(path))
    return copy.deepcopy(documents[0])


REFERENCES = dict.fromkeys(
    ("data", "model", "partition", "exchange", "exchange.schedule", "training.loss"), parse_kind
)
"""Keys whose records may be named by their kind: ``exchange:
importance_pair:exchange_fraction=0.1,lagging=true``."""
_KEYS = set(Run.model_fields) - {"seed"}


# ----------------------------------------------------------------------- from raw values to a study


def _set(
    raw: dict[str, Any], key: str, value: Any, problems: list[Problem], left: PendingSwitches
) -> None:
    """Set a dotted key, and take it out of the blocks, which would set it again."""
    if left.set_key(raw, key, value, problems, REFERENCES) and key != "runs":
        blocks = raw["runs"] if isinstance(raw.get("runs"), list) else []
        for number, block in enumerate(blocks):
            if isinstance(block, dict):
                pin_axis(block, key, value, f"runs.{number}", problems)


def _normalise(block: Any, path: str, folder: Path, problems: list[Problem]) -> None:
    """Bring a block into its form: records by their kind, files where they are."""
    if not isinstance(block, dict):
        return
    found: list[Problem] = []
    for key in [key for key in block if key in REFERENCES]:
        values = block[key] if isinstance(block[key], list) else [block[key]]
        records = [{key: copy.deepcopy(value)} for value in values]
        for record in records:
            expand_name(record, key, REFERENCES, found)
            if key == "data":
                locate(record[key], "path", folder)
        block[key] = [record[key] for record in records]
    problems += [problem.below(path) for problem in found]


def locate(values: Any, key: str, folder: Path) -> None:
    """Make the path at ``key``, if there is one, absolute: beside the study if it is there."""
    if isinstance(values, dict) and isinstance(values.get(key), str):
        given = Path(values[key]).expanduser()
        values[key] = str((folder / given if (folder / given).exists() else given).absolute())


def _expanded(study: Study, problems: list[Problem]) -> Iterator[Run]:
    base = study.model_dump(mode="json", exclude_none=True, include=_KEYS)
    for number, block in enumerate(study.runs):
        at = f"runs.{number}"
        seeds = block.get("seeds", study.seeds)
        lists = {key: values for key, values in block.items() if key != "seeds"}
        axes = {key: lists[key] for key in lists if key.split(".")[0] in _KEYS}
        known = sorted({*_KEYS, "seeds"})
        problems += [
            Problem(
                f"{at}.{key}", "is not a known key", "", suggest_nearest(key.split(".")[0], known)
            )
            for key in lists
            if key not in axes
        ]
        if bad := grid_problems(lists):
            problems += [problem.below(at) for problem in bad]
            continue
        for values in grid(sort_outermost_first(axes)):
            raw, found, left = copy.deepcopy(base), list[Problem](), PendingSwitches(Run)
            ready = all(left.set_key(raw, *item, found, REFERENCES) for item in values.items())
            warn_of_switches(left.settle(raw, values))
            if ready and all(expand_name(raw, key, REFERENCES, found) for key in REFERENCES):
                run, found = validate_record(raw, Run)
                if run is not None and not found:
                    yield from (run.model_copy(update={"seed": seed}) for seed in seeds)
            problems += [replace(p, path=_blamed(p.path, at, axes)) for p in found]


def _blamed(path: str, at: str, keys: Iterable[str]) -> str:
    """Where in the study's file the value stands that a problem of a run's key comes from."""
    of_block = any(keys_overlap(path, key) for key in keys)
    return f"{at}.{path}" if of_block or path in {"exchange", "world_size"} else path
