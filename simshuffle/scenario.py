"""Scenario: a cluster, a workload, and how many ranks, epochs and seeds. Read from YAML, checked whole, written back with units."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from simshuffle.cluster import Cluster
from simshuffle.errors import InputError, Problem, ScenarioError
from simshuffle.library import catalog_entry, find, is_file, nearest, read_value, read_yaml
from simshuffle.network import Fluid, Network
from simshuffle.resources import network_graph
from simshuffle.spec import Count, Spec
from simshuffle.topology import Custom
from simshuffle.units import Dimension, readable
from simshuffle.workload import Workload


class Scenario(Spec):
    """One experiment. ``sweep`` maps dotted keys to lists of values and makes a run of every combination."""

    name: str
    description: str = ""
    cluster: Cluster
    world_size: Count
    epochs: Count = 2
    seed: Annotated[int, Field(ge=0)] = 0
    workload: Workload
    network: Network = Fluid()
    sweep: dict[str, list[Any]] = Field(default_factory=dict)

    def rng(self, name: str, *numbers: int) -> np.random.Generator:
        """The random stream of that name (and numbers, such as the epoch): independent of every other, the same on every machine."""
        word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
        return np.random.default_rng([self.seed, word, *numbers])

    def with_values(self, values: Mapping[str, Any]) -> Scenario:
        """A new scenario with other values, by dotted key; checked like a file.

        Raises:
            ScenarioError: a key or a value is not valid.
        """
        return _build(self.to_dict(), values, source=self.name, folder=None)

    def runs(self) -> dict[str, Scenario]:
        """The runs of the sweep by name, in its order; a scenario without sweep is one run.

        Raises:
            ScenarioError: a combination is not valid.
        """
        base = self.model_copy(update={"sweep": {}})
        keys = list(self.sweep)
        out: dict[str, Scenario] = {}
        for values in itertools.product(*self.sweep.values()):
            run = base.with_values(dict(zip(keys, values, strict=True))) if keys else base
            name = run.label()
            other = [f"{k.rsplit('.', 1)[-1]}={_short(v)}" for k, v in zip(keys, values, strict=True) if k not in _IN_LABEL]
            full = " ".join([name, *other])
            if full in out:
                raise ScenarioError(Problem("sweep", "two runs must not have the same name", repr(full), "Use distinct values."), self.name)
            out[full] = run
        return out

    def label(self) -> str:
        """Strategy and world size, such as 'partial-0.1 @2048'."""
        exchange = self.workload.exchange
        kind = exchange.kind.removesuffix("_shuffle").removesuffix("_local")
        detail = f"-{exchange.fraction:g}" if exchange.fraction else "" if exchange.fraction is not None else f"-{exchange.source}"
        if exchange.fraction == 0 and exchange.source == "pfs":
            detail = "-pfs"
        return f"{kind}{detail} @{self.world_size}"

    def to_dict(self) -> dict[str, Any]:
        """The resolved scenario as plain values, quantities as text with units."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_yaml(self) -> str:
        """The resolved scenario as YAML that `load_scenario` reads back to an equal one."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True, width=130)

    @property
    def hosts(self) -> int:
        """Hosts that the ranks fill."""
        return -(-self.world_size // self.cluster.host.gpus)

    @property
    def storage_per_host(self) -> float:
        """Largest number of bytes that one host keeps on its SSD: (1 + Q) N/M size for each of its ranks."""
        ranks = min(self.world_size, self.cluster.host.gpus)
        return self.workload.exchange.stored_share(self.world_size, ranks) * self.workload.dataset.nbytes


_IN_LABEL = {"workload.exchange", "world_size", "workload.exchange.exchange_fraction"}
_REFERENCES = {"cluster", "workload.model", "workload.dataset", "workload.exchange"}


def _short(value: Any) -> str:
    return str(value.get("name", value.get("kind", "..."))) if isinstance(value, dict) else str(value)


def load_scenario(reference: str | Path, values: Mapping[str, Any] | None = None) -> Scenario:
    """The scenario of a file, or of a shipped one by its name below ``scenarios/``.

    Args:
        reference: path or name.
        values: values to set, by dotted key, such as ``{"world_size": 512, "workload.exchange": "local_shuffle"}``.

    Raises:
        ScenarioError: with every problem of the file.
    """
    scenarios = load_scenarios(reference, values)
    if len(scenarios) != 1:
        raise ScenarioError(
            Problem("", "must hold one scenario", f"{len(scenarios)} documents", "Use load_scenarios for several."), str(reference)
        )
    return scenarios[0]


def load_scenarios(reference: str | Path, values: Mapping[str, Any] | None = None) -> list[Scenario]:
    """All scenarios of a file: one for each YAML document. Arguments and errors as in `load_scenario`."""
    path = find(str(reference), "scenarios")
    documents = read_yaml(path)
    if not documents:
        raise ScenarioError(Problem("", "must hold a scenario", "an empty file", "See scenarios/ for examples."), str(path))
    return [_build(document, values or {}, source=str(path), folder=path.parent) for document in documents]


# ---------------------------------------------------------------------------------------------------- from raw values to a scenario


def _build(raw: Any, values: Mapping[str, Any], source: str, folder: Path | None) -> Scenario:
    if not isinstance(raw, dict):
        raise ScenarioError(
            Problem("", "must be a mapping of keys", type(raw).__name__, "Start with name:, cluster:, world_size:, workload:."), source
        )
    raw = copy.deepcopy(raw)
    problems: list[Problem] = []
    for key, value in values.items():
        _set(raw, key, value, folder, problems)
    for key in sorted(_REFERENCES):
        _expand(raw, key, folder, problems)
    sweep = raw.get("sweep")
    if folder is not None and isinstance(sweep, dict) and isinstance(sweep.get("cluster"), list):
        for number, reference in enumerate(sweep["cluster"]):
            holder = {"cluster": reference}
            _expand(holder, "cluster", folder, problems)
            _locate_topology(holder, folder)
            sweep["cluster"][number] = holder["cluster"]
    _locate_topology(raw, folder)
    scenario, found = _validate(raw)
    broken = {problem.path for problem in problems}
    problems += [p for p in found if not any(p.path == b or p.path.startswith(f"{b}.") for b in broken)]
    if scenario is not None and not broken:
        problems += _meaning(scenario)
    if problems or scenario is None:
        raise ScenarioError(problems, source)
    return scenario


def _set(raw: dict[str, Any], key: str, value: Any, folder: Path | None, problems: list[Problem]) -> None:
    """Set a dotted key, expanding what is only named on the way."""
    parts = key.split(".")
    at = raw
    for depth, part in enumerate(parts[:-1], 1):
        prefix = ".".join(parts[:depth])
        if prefix in _REFERENCES:
            _expand(raw, prefix, folder, problems)
        at = at.setdefault(part, {})
        if not isinstance(at, dict):
            problems.append(Problem(key, f"cannot be set: '{prefix}' holds a plain value", repr(at), f"Set {prefix} itself."))
            return
    at[parts[-1]] = copy.deepcopy(value)  # the caller keeps his
    raw.setdefault("sweep", {})
    if key != "sweep" and isinstance(raw["sweep"], dict):
        raw["sweep"].pop(key, None)
        for swept in list(raw["sweep"]):
            if str(swept).startswith(f"{key}."):
                raw["sweep"].pop(swept)
            elif key.startswith(f"{swept}."):
                problems.append(Problem(key, f"has no effect: sweep.{swept} sets it for each run", repr(value), f"Set {swept} too."))


def _expand(raw: dict[str, Any], key: str, folder: Path | None, problems: list[Problem]) -> None:
    """Replace a name by what it names."""
    *parents, last = key.split(".")
    at: Any = raw
    for part in parents:
        at = at.get(part) if isinstance(at, dict) else None
    if not isinstance(at, dict) or not isinstance(at.get(last), str):
        return
    try:
        at[last] = _named(last, at[last], folder)
    except InputError as error:
        problems += [Problem(f"{key}{f'.{p.path}' if p.path else ''}", p.rule, p.value, p.remedy) for p in error.problems]


def _named(key: str, text: str, folder: Path | None) -> Any:
    if key == "cluster":
        path = find(text, "topologies", folder)
        documents = read_yaml(path)
        if len(documents) != 1 or not isinstance(documents[0], dict):
            found = f"{len(documents)} documents" if len(documents) != 1 else type(documents[0]).__name__
            raise ScenarioError(Problem("", f"{path} must hold the mapping of one cluster", found, "See topologies/ for examples."))
        return documents[0]
    if key in {"model", "dataset"}:
        return catalog_entry(f"{key}s", text)
    kind, _, arguments = text.partition(":")
    out: dict[str, Any] = {"kind": kind}
    for item in filter(None, arguments.split(",")):
        name, equals, value = item.partition("=")
        if not equals:
            raise ScenarioError(
                Problem("", "parameters are written name=value", repr(item), "For example partial_local_shuffle:exchange_fraction=0.1.")
            )
        at = out
        *parents, last = name.strip().split(".")
        for part in parents:
            at = at.setdefault(part, {})
            if not isinstance(at, dict):
                raise ScenarioError(Problem(name, f"cannot be set: '{part}' holds a plain value", repr(value), "Give one of the two."))
        try:
            at[last] = read_value(value)
        except ValueError:
            raise ScenarioError(Problem(name, "the value must be plain YAML", repr(value), "Write for example 0.1.")) from None
    return out


def _locate_topology(raw: dict[str, Any], folder: Path | None) -> None:
    """Make the path of a custom topology absolute, and note what the file holds, so that the resolved scenario stands alone."""
    cluster = raw.get("cluster")
    topology = cluster.get("topology") if isinstance(cluster, dict) else None
    if isinstance(topology, dict) and topology.get("kind") == "custom" and isinstance(topology.get("path"), str):
        beside = (folder or Path()) / topology["path"]
        path = beside if is_file(beside) else Path(topology["path"])
        with contextlib.suppress(OSError, ValueError):
            topology["path"] = str(path.resolve())
        if is_file(path):
            topology.setdefault("sha256", Custom(kind="custom", path=str(path)).digest())


def _validate(raw: dict[str, Any]) -> tuple[Scenario | None, list[Problem]]:
    """The scenario and the problems of its form. With problems, a scenario is returned if leaving the bad keys out makes one."""
    try:
        return Scenario.model_validate(raw), []
    except ValidationError as error:
        problems = [_problem(detail) for detail in error.errors(include_url=False)]
        repaired = copy.deepcopy(raw)
        for detail in error.errors(include_url=False):
            _drop(repaired, detail["loc"])
        try:
            return Scenario.model_validate(repaired), problems
        except ValidationError:
            return None, problems


def _drop(raw: Any, location: Iterable[int | str]) -> None:
    steps = [step for step in location if not isinstance(step, str) or not step.startswith("function-")]
    at = raw
    for step in steps[:-1]:
        if isinstance(at, dict) and step in at:
            at = at[step]
    if isinstance(at, dict) and steps:
        at.pop(steps[-1], None)


_RULES = {
    "missing": ("is required", "Add it."),
    "int_type": ("must be a whole number without quotes", "Write for example 512."),
    "float_type": ("must be a number without unit", "Write for example 0.1."),
    "string_type": ("must be text", "Put it in quotes."),
    "bool_type": ("must be true or false", "Write true or false."),
    "dict_type": ("must be a mapping of keys", "Indent its keys below it."),
    "list_type": ("must be a list", "Write [a, b, ...]."),
    "model_type": ("must be a mapping of keys", "Indent its keys below it, or give a known name."),
    "model_attributes_type": ("must be a mapping of keys", "Indent its keys below it, or give a known name."),
}


def _problem(detail: ErrorDetails) -> Problem:
    """One error of pydantic in the words of the user's file."""
    path = ".".join(str(step) for step in _visible(detail["loc"]))
    value = _shown(detail["input"])
    kind = detail["type"]
    if kind == "extra_forbidden":
        return Problem(path, "is not a known key", value, nearest(str(detail["loc"][-1]), _known_keys(detail["loc"])))
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        context = detail.get("ctx", {})
        known = str(context.get("expected_tags", "")) or "one of the known kinds"
        return Problem(f"{path}.kind", f"must be one of {known}", repr(context.get("tag", "")), "Name one of them.")
    if kind in _RULES:
        rule, remedy = _RULES[kind]
        return Problem(path, rule, "" if kind == "missing" else value, remedy)
    rule = detail["msg"].removeprefix("Input ").removeprefix("Value error, ")
    remedy = "" if kind == "unit" else "Give a value that obeys the rule."
    return Problem(path, rule, value, remedy)


def _visible(location: Iterable[int | str]) -> list[int | str]:
    """A location without the steps that pydantic adds for unions."""
    tags = {"abci", "fat_tree", "star", "custom", "global_shuffle", "local_shuffle", "partial_local_shuffle", "analytic", "fluid", "packet"}
    steps = list(location)
    return [
        s
        for i, s in enumerate(steps)
        if not (i and steps[i - 1] in {"topology", "exchange", "network"} and s in tags)
        and not (isinstance(s, str) and (s.startswith("function-") or "[" in s or s in {"constrained-int", "literal['iteration']"}))
    ]


def _shown(value: Any) -> str:
    text = "a mapping" if isinstance(value, dict) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _known_keys(location: Iterable[int | str]) -> list[str]:
    """The keys that were possible where an unknown one was found."""
    steps = list(location)[:-1]
    model: Any = Scenario
    for step in steps:
        model = _step_into(model, step)
    if isinstance(model, type) and issubclass(model, BaseModel):
        return sorted(model.model_fields)
    return []


def _step_into(model: Any, step: int | str) -> Any:
    if isinstance(model, tuple):  # members of a union; the step is the tag
        return next((m for m in model if m.model_fields["kind"].annotation == Literal[step]), None)
    if not (isinstance(model, type) and issubclass(model, BaseModel)) or step not in model.model_fields:
        return None
    annotation = model.model_fields[str(step)].annotation
    members = getattr(annotation, "__args__", ())
    return members if len(members) > 1 and all(hasattr(m, "model_fields") for m in members) else annotation


# ---------------------------------------------------------------------------------------------------- what the numbers mean together


def _meaning(scenario: Scenario) -> list[Problem]:
    """Problems of values that are fine one by one."""
    problems: list[Problem] = []
    cluster, workload = scenario.cluster, scenario.workload
    try:
        graph = network_graph(cluster)
        hosts = sum(1 for _, kind in graph.nodes(data="kind") if kind == "host")
        gpus = hosts * cluster.host.gpus
        if scenario.world_size > gpus:
            problems.append(
                Problem(
                    "world_size",
                    f"must not exceed the {gpus} GPUs of {cluster.name} ({hosts} hosts with {cluster.host.gpus})",
                    str(scenario.world_size),
                    f"Use at most {gpus} ranks or a larger topology.",
                )
            )
    except InputError as error:
        where = "cluster.topology.path"
        problems += [
            p if p.path.startswith("cluster") else Problem(where, f"{error.source}: {p.path or 'the file'} {p.rule}", p.value, p.remedy)
            for p in error.problems
        ]
    if cluster.host.accelerator not in workload.model.accelerators:
        known = sorted(workload.model.accelerators)
        problems.append(
            Problem(
                "workload.model.accelerators",
                f"needs the step times of {workload.model.name} on the cluster's accelerator",
                repr(cluster.host.accelerator),
                f"Add workload.model.accelerators.{cluster.host.accelerator} with forward, backward, update. {nearest('', known)}",
            )
        )
    if scenario.world_size > workload.dataset.num_samples:
        problems.append(
            Problem(
                "world_size", f"must not exceed the {workload.dataset.num_samples} samples", str(scenario.world_size), "Use fewer ranks."
            )
        )
    if workload.allreduce.rings > cluster.host.hcas:
        problems.append(
            Problem(
                "workload.allreduce.rings",
                f"every ring has an HCA of its own; the hosts have {cluster.host.hcas}",
                str(workload.allreduce.rings),
                f"Use at most {cluster.host.hcas} rings.",
            )
        )
    problems += _storage_problems(scenario)
    return (
        problems
        + [
            Problem(f"sweep.{key}", "must list at least one value", "none", "Add values or remove the key.")
            for key, values in scenario.sweep.items()
            if not values
        ]
        + [
            Problem(f"sweep.{key}", "cannot be swept", "a mapping", "Write each of its keys as a key of the sweep.")
            for key in scenario.sweep
            if key.split(".")[0] == "sweep"
        ]
    )


def _storage_problems(scenario: Scenario) -> list[Problem]:
    need, have = scenario.storage_per_host, scenario.cluster.ssd.capacity
    if need <= have:
        return []
    exchange, dataset = scenario.workload.exchange, scenario.workload.dataset
    rule = (
        f"{exchange.kind} keeps {readable(need, Dimension.NBYTES)} of {dataset.name} ({readable(dataset.nbytes, Dimension.NBYTES)}) on the "
        f"SSD of each of {scenario.hosts} hosts, which holds {readable(have, Dimension.NBYTES)}"
    )
    remedy = "Use global_shuffle:source=pfs, or local_shuffle or partial_local_shuffle on more hosts."
    return [Problem("workload.exchange", rule, f"{readable(need - have, Dimension.NBYTES)} too much", remedy)]
