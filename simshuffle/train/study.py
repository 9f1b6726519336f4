"""Study: many training runs that differ in a few things, read from a file: strategies, Q, ranks,
seeds, or any other key of a run."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from simshuffle.errors import InputError, Problem
from simshuffle.exchange import TrainedExchange
from simshuffle.spec.library import by_kind, find, is_file, nearest, read_yaml
from simshuffle.spec.record import Count, Spec
from simshuffle.spec.validation import validated
from simshuffle.train.data import Data
from simshuffle.train.models import Model
from simshuffle.train.partition import Partition, RandomPartition
from simshuffle.train.run import Run
from simshuffle.train.training import Training

MOST_RUNS = 100_000


def _seed_list(value: object) -> object:
    if type(value) is int and 1 <= value <= MOST_RUNS:
        return list(range(value))
    if (
        not isinstance(value, list)
        or not value
        or not all(type(seed) is int and seed >= 0 for seed in value)
    ):
        raise PydanticCustomError(
            "seeds", "must be a list of whole numbers from 0, or how many there are"
        )
    return value


def _block(value: object) -> object:
    """A block with every single value as a list of one, and its count of seeds as seeds."""
    if not isinstance(value, dict):
        return value
    listed = {key: _seed_list(each) if key == "seeds" else each for key, each in value.items()}
    return {key: each if isinstance(each, list) else [each] for key, each in listed.items()}


Seeds = Annotated[list[int], BeforeValidator(_seed_list)]
"""Seeds; a count n stands for 0, 1, ..., n - 1."""
Block = Annotated[dict[str, list[Any]], BeforeValidator(_block)]
"""Values by the dotted key of a run; a run is made of every combination. 'seeds' takes the place of
the study's seeds."""


class Study(Spec):
    """Runs of many combinations.

    Attributes:
        kind: 'shuffling': strategies compared by the accuracy that they reach.
        name: of the study.
        description: in words; the report begins with it.
        data, model, partition, training, cluster, exchange, world_size: as of `Run`, of all runs
        that do not say otherwise.
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
        return yaml.safe_dump(
            self.model_dump(mode="json", exclude_none=True),
            sort_keys=False,
            allow_unicode=True,
            width=130,
        )

    def all_runs(self) -> list[Run]:
        """Every run once, in the order of the blocks.

        Raises:
            InputError: a combination is not valid; all of them are named.
        """
        problems: list[Problem] = []
        runs = {
            json.dumps(run.model_dump(mode="json"), sort_keys=True): run
            for run in _expanded(self, problems)
        }
        if len(runs) > MOST_RUNS:
            problems.append(
                Problem(
                    "runs",
                    f"must make at most {MOST_RUNS} runs",
                    str(len(runs)),
                    "Leave some values out.",
                )
            )
        if problems:
            raise InputError(list(dict.fromkeys(problems)), self.name)
        return list(runs.values())


def load_study(reference: str | Path, values: Mapping[str, Any] | None = None) -> Study:
    """The study of a file, or of a shipped one by its name below ``studies/``.

    Args:
        reference: path or name.
        values: values to set, by dotted key, such as ``{"seeds": 3, "training.epochs": 5}``; blocks
            no longer vary a key that is set.

    Raises:
        InputError: with every problem of the file, those of the runs that its blocks make included.
    """
    path = find(str(reference), "studies")
    raw = document(path)
    problems: list[Problem] = []
    for key, value in (values or {}).items():
        _set(raw, key, value, problems)
    for key in REFERENCES:
        _name_by_kind(raw, key, key, problems)
    _locate(raw.get("data"), path.parent)
    if isinstance(raw.get("cluster"), str) and is_file(path.parent / raw["cluster"]):
        raw["cluster"] = str((path.parent / raw["cluster"]).absolute())
    for number, block in enumerate(raw["runs"] if isinstance(raw.get("runs"), list) else []):
        _normalise(block, f"runs.{number}", path.parent, problems)
    study, found = validated(raw, Study)
    problems += found
    if study is not None:
        try:
            study.all_runs()
        except InputError as error:
            problems += error.problems
    if problems or study is None:
        raise InputError(problems, str(path))
    return study


def document(path: Path) -> dict[str, Any]:
    """The plain values of a study's file.

    Raises:
        InputError: it does not hold one mapping.
    """
    documents = read_yaml(path)
    if len(documents) != 1 or not isinstance(documents[0], dict):
        given = (
            type(documents[0]).__name__ if len(documents) == 1 else f"{len(documents)} documents"
        )
        raise InputError(
            Problem("", "must hold the mapping of one study", given, "See studies/ for examples."),
            str(path),
        )
    return copy.deepcopy(documents[0])


REFERENCES = ("data", "model", "partition", "exchange")
"""Keys whose records may be named by their kind: ``exchange:
importance_pair:exchange_fraction=0.1,lagging=true``."""
_KEYS = set(Run.model_fields) - {"seed"}


# ----------------------------------------------------------------------- from raw values to a study


def _set(raw: dict[str, Any], key: str, value: Any, problems: list[Problem]) -> None:
    """Set a dotted key, and take it out of the blocks, which would set it again."""
    *parents, last = key.split(".")
    at: Any = raw
    for depth, part in enumerate(parents, 1):
        if part in REFERENCES and depth == 1:
            _name_by_kind(raw, part, part, problems)
        at = at.setdefault(part, {})
        if not isinstance(at, dict):
            problems.append(
                Problem(
                    key,
                    f"cannot be set: '{'.'.join(parents[:depth])}' holds a plain value",
                    repr(at),
                    "Set that itself.",
                )
            )
            return
    at[last] = copy.deepcopy(value)
    for number, block in enumerate(
        raw["runs"] if key != "runs" and isinstance(raw.get("runs"), list) else []
    ):
        for varied in (
            [each for each in block if isinstance(each, str)] if isinstance(block, dict) else []
        ):
            if varied == key or varied.startswith(f"{key}."):
                del block[varied]
            elif key.startswith(f"{varied}."):
                rule = f"has no effect in block {number}: runs.{number}.{varied} sets it"
                problems.append(Problem(key, rule, repr(value), f"Set {varied} too."))


def _normalise(block: Any, path: str, folder: Path, problems: list[Problem]) -> None:
    """Bring a block into its form: records by their kind, files where they are."""
    if not isinstance(block, dict):
        return
    for key, values in block.items():
        if key in REFERENCES:
            each = values if isinstance(values, list) else [values]
            block[key] = [
                _record({key: copy.deepcopy(value)}, key, path, folder, problems) for value in each
            ]


def _record(
    holder: dict[str, Any], key: str, path: str, folder: Path, problems: list[Problem]
) -> Any:
    """The plain values of the record below ``key``."""
    _name_by_kind(holder, key, f"{path}.{key}", problems)
    if key == "data":
        _locate(holder[key], folder)
    return holder[key]


def _name_by_kind(holder: dict[Any, Any], key: Any, path: str, problems: list[Problem]) -> None:
    """Replace a text by the plain values of the record that it names."""
    if not isinstance(holder.get(key), str):
        return
    try:
        holder[key] = by_kind(holder[key])
    except InputError as error:
        problems += [
            Problem(".".join(filter(None, (path, p.path))), p.rule, p.value, p.remedy)
            for p in error.problems
        ]
        holder[key] = {"kind": holder[key].partition(":")[0]}


def _locate(data: Any, folder: Path) -> None:
    """Make the path of a data set absolute: from the study's folder if it is there, else from the
    working directory."""
    if isinstance(data, dict) and isinstance(data.get("path"), str):
        beside = folder / Path(data["path"]).expanduser()
        data["path"] = str(
            (beside if beside.exists() else Path(data["path"]).expanduser()).absolute()
        )


def _expanded(study: Study, problems: list[Problem]) -> Iterator[Run]:
    base = study.model_dump(mode="json", exclude_none=True, include=_KEYS)
    for number, block in enumerate(study.runs):
        at = f"runs.{number}"
        seeds = block.get("seeds", study.seeds)
        lists = {key: values for key, values in block.items() if key != "seeds"}
        unknown = [key for key in lists if key.split(".")[0] not in _KEYS]
        problems += [
            Problem(
                f"{at}.{key}",
                "is not a known key",
                "",
                nearest(key.split(".")[0], sorted({*_KEYS, "seeds"})),
            )
            for key in unknown
        ]
        empty = [key for key, values in lists.items() if not values]
        problems += [
            Problem(
                f"{at}.{key}",
                "must list at least one value",
                "none",
                "Add values or remove the key.",
            )
            for key in empty
        ]
        if empty:
            continue
        # a record before what is in it
        keys = sorted(
            set(lists) - set(unknown), key=lambda key: (key.count("."), list(lists).index(key))
        )
        for values in itertools.product(*(lists[key] for key in keys)):
            raw, blame = copy.deepcopy(base), _blamer(at, keys)
            if _put_all(raw, dict(zip(keys, values, strict=True)), blame, problems):
                run, found = validated(raw, Run)
                problems += [Problem(blame(p.path), p.rule, p.value, p.remedy) for p in found]
                if run is not None and not found:
                    yield from (run.model_copy(update={"seed": seed}) for seed in seeds)


def _blamer(at: str, keys: list[str]) -> Callable[[str], str]:
    """Where in the study's file the value stands that a problem of a run's key comes from."""

    def blame(path: str) -> str:
        of_block = any(
            path == key or path.startswith(f"{key}.") or key.startswith(f"{path}.") for key in keys
        )
        return f"{at}.{path}" if of_block or path in {"exchange", "world_size"} else path

    return blame


def _put_all(
    raw: dict[str, Any],
    values: Mapping[str, Any],
    blame: Callable[[str], str],
    problems: list[Problem],
) -> bool:
    """Set dotted keys; whether all could be set."""
    for key, value in values.items():
        *parents, last = key.split(".")
        at: Any = raw
        for part in parents:
            at = at.setdefault(part, {}) if isinstance(at, dict) else None
        if not isinstance(at, dict):
            problems.append(
                Problem(
                    blame(key),
                    "cannot be set: a key before it holds a plain value",
                    repr(value),
                    "Name a key that exists.",
                )
            )
            return False
        at[last] = copy.deepcopy(value)
    return True
