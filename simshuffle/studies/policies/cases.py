"""A study: one system and several cases, from a file, from those that simshuffle brings along, or
from a scenario."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError

from simshuffle.errors import InputError, Problem
from simshuffle.scenario.scenario import load_scenario
from simshuffle.spec.library import documents, is_file, nearest, read_yaml, shipped_names
from simshuffle.spec.overrides import put
from simshuffle.spec.record import Sourced
from simshuffle.studies.policies.mapping import case_of, system_of
from simshuffle.studies.policies.system import Case, System

STUDIES = Path(__file__).parent / "studies"


class Study(Sourced):
    """Cases on one system. ``seed`` decides who reads which sample in which epoch."""

    name: str
    description: str = ""
    seed: Annotated[int, Field(ge=0)] = 0
    system: System
    cases: Annotated[dict[str, Case], Field(min_length=1)]

    def to_yaml(self) -> str:
        """The study as YAML that `load` reads back to an equal one."""
        # not mode "json", whose keys are text: the places of a curve are numbers
        return yaml.safe_dump(
            self.model_dump(exclude_none=True), sort_keys=False, allow_unicode=True, width=130
        )

    def only(self, cases: list[str]) -> Study:
        """The study with those of its cases; with all if none is named.

        Raises:
            InputError: there is no such case.
        """
        known = list(self.cases)
        unknown = [
            Problem("--case", "no such case", repr(name), nearest(name, known))
            for name in cases
            if name not in known
        ]
        if unknown:
            raise InputError(unknown, self.name)
        return (
            self.model_copy(
                update={"cases": {name: case for name, case in self.cases.items() if name in cases}}
            )
            if cases
            else self
        )


def read(text: str, source: str) -> Study:
    """The study that `Study.to_yaml` wrote as ``text``.

    Raises:
        InputError: it is none.
    """
    found = documents(text, source)
    return _built(found[0] if found and isinstance(found[0], dict) else {}, {}, source)


def names() -> list[str]:
    """Names of the studies that simshuffle brings along."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def load(reference: str, values: Mapping[str, Any]) -> Study:
    """The study of a file or of that name; or a scenario, as a study of one case, without its
    sweep.

    Args:
        reference: path or name.
        values: values to set, by dotted key of the study or of the scenario.

    Raises:
        InputError: there is none, or it is not valid; with every problem.
    """
    path = STUDIES / f"{reference}.yaml" if reference in names() else Path(reference)
    if is_file(path):
        documents = read_yaml(path)
        if len(documents) == 1 and isinstance(documents[0], dict) and "system" in documents[0]:
            return _built(documents[0], values, str(path))
    elif path.suffix not in {".yaml", ".yml", ".json"} and reference not in (
        known := shipped_names("scenarios")
    ):
        raise InputError(
            Problem(
                "",
                "no such scenario or study",
                repr(reference),
                nearest(reference, [*names(), *known]),
            )
        )
    scenario = load_scenario(reference, values)
    case = case_of(scenario)
    return Study(
        name=scenario.name, seed=scenario.seed, system=system_of(scenario), cases={case[0]: case[1]}
    )


def _built(raw: dict[Any, Any], values: Mapping[str, Any], source: str) -> Study:
    raw = copy.deepcopy(raw)
    problems: list[Problem] = []
    for key, value in values.items():
        put(raw, key, value, problems, create=False)
    try:
        study = Study.model_validate(raw)
    except ValidationError as error:
        problems += [_problem(detail) for detail in error.errors(include_url=False)]
    if problems:
        raise InputError(problems, source)
    return study


def _problem(detail: Any) -> Problem:
    """One error of pydantic; its text names the rule."""
    path = ".".join(str(step) for step in detail["loc"])
    if detail["type"] == "missing":
        return Problem(path, "is required", remedy="Add it.")
    if detail["type"] == "extra_forbidden":
        return Problem(
            path,
            "is not a known key",
            repr(detail["input"])[:60],
            "Remove it, or correct its name.",
        )
    rule = detail["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return Problem(path, rule, repr(detail["input"])[:60], "Give a value that obeys the rule.")
