"""Scenario: a cluster, a workload, and how many ranks, epochs and seeds. Read from YAML, checked
whole, written back with units."""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import yaml
from pydantic import Field, field_validator

from simshuffle.errors import InputError, Problem, ScenarioError
from simshuffle.exchange import Recorded
from simshuffle.network import Fluid, Network
from simshuffle.plan.resources import network_graph
from simshuffle.plan.staging import storage_problems
from simshuffle.scenario.calibrated import Calibrated, blame, forget, include, mismatches, related
from simshuffle.scenario.cluster import Cluster
from simshuffle.scenario.workload import ModelProfile, Workload
from simshuffle.spec.library import by_kind, catalog_entry, find, is_file, nearest, read_yaml
from simshuffle.spec.overrides import combination_name, grid
from simshuffle.spec.record import Count, Spec
from simshuffle.spec.rng import stream
from simshuffle.spec.validation import validated


class Scenario(Spec):
    """One experiment. ``sweep`` maps dotted keys to lists of values and makes a run of every
    combination.

    ``models`` holds profiles by name, which ``workload.model`` may name like those of the catalog,
    and before them. ``calibrated`` says which of the values were measured, and how far they hold.
    """

    name: str
    description: str = ""
    cluster: Cluster
    world_size: Count
    epochs: Count = 2
    seed: Annotated[int, Field(ge=0)] = 0
    workload: Workload
    network: Network = Fluid()
    sweep: dict[str, list[Any]] = Field(default_factory=dict)
    models: dict[str, ModelProfile] = Field(default_factory=dict)
    calibrated: list[Calibrated] = Field(default_factory=list)

    @field_validator("models", mode="before")
    @classmethod
    def _names(cls, models: Any) -> Any:
        """The key of a profile is its name."""
        if not isinstance(models, dict):
            return models
        return {
            key: {"name": key, **model} if isinstance(model, dict) else model
            for key, model in models.items()
        }

    def rng(self, name: str, *numbers: int) -> np.random.Generator:
        """The random stream of that name (and numbers, such as the epoch): independent of every
        other, the same on every machine."""
        return stream(self.seed, name, *numbers)

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
        return self.combinations(self.sweep)

    def combinations(
        self, axes: Mapping[str, Sequence[Any]], zipped: bool = False
    ) -> dict[str, Scenario]:
        """A run without sweep for each combination of the values of dotted keys, by its name.

        Args:
            axes, zipped: see `simshuffle.spec.overrides.grid`.

        Raises:
            InputError: the axes make no grid, a combination is not valid, or two have one name.
        """
        base = self.model_copy(update={"sweep": {}})
        out: dict[str, Scenario] = {}
        for values in grid(axes, zipped):
            run = base.with_values(values) if values else base
            name = f"{run.label()} {combination_name(values, _IN_LABEL)}".rstrip()
            if name in out:
                rule = "two runs must not have the same name"
                raise ScenarioError(
                    Problem("sweep", rule, repr(name), "Use distinct values."), self.name
                )
            out[name] = run
        return out

    def label(self) -> str:
        """Strategy and world size, such as 'partial-0.1 @2048'."""
        exchange = self.workload.exchange
        detail = (
            f"-{exchange.fraction:g}"
            if exchange.fraction
            else ""
            if exchange.fraction is not None
            else f"-{exchange.tier}"
        )
        if exchange.fraction == 0 and exchange.tier == "pfs":
            detail = "-pfs"
        return f"{exchange.short_name}{detail} @{self.world_size}"

    def to_dict(self) -> dict[str, Any]:
        """The resolved scenario as plain values, quantities as text with units."""
        return self.model_dump(
            mode="json", exclude_none=True, exclude=set() if self.calibrated else {"calibrated"}
        )

    def to_yaml(self) -> str:
        """The resolved scenario as YAML that `load_scenario` reads back to an equal one."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True, width=130)

    @property
    def hosts(self) -> int:
        """Hosts that the ranks fill."""
        return -(-self.world_size // self.cluster.host.gpus)

    @property
    def storage_per_host(self) -> float:
        """Largest number of bytes that one host keeps of what is staged: (1 + Q) N/M size for each
        of its ranks."""
        ranks = min(self.world_size, self.cluster.host.gpus)
        return (
            self.workload.exchange.stored_share(self.world_size, ranks)
            * self.workload.dataset.nbytes
        )


_IN_LABEL = {"workload.exchange", "world_size", "workload.exchange.exchange_fraction"}
_REFERENCES = {"cluster", "workload.model", "workload.dataset", "workload.exchange"}


def load_scenario(reference: str | Path, values: Mapping[str, Any] | None = None) -> Scenario:
    """The scenario of a file, or of a shipped one by its name below ``scenarios/``.

    Args:
        reference: path or name.
        values: values to set, by dotted key, such as ``{"world_size": 512, "workload.exchange":
            "local_shuffle"}``.

    Raises:
        ScenarioError: with every problem of the file.
    """
    scenarios = load_scenarios(reference, values)
    if len(scenarios) != 1:
        raise ScenarioError(
            Problem(
                "",
                "must hold one scenario",
                f"{len(scenarios)} documents",
                "Use load_scenarios for several.",
            ),
            str(reference),
        )
    return scenarios[0]


def load_scenarios(
    reference: str | Path, values: Mapping[str, Any] | None = None
) -> list[Scenario]:
    """All scenarios of a file: one for each YAML document. Arguments and errors as in
    `load_scenario`."""
    path = find(str(reference), "scenarios")
    documents = read_yaml(path)
    if not documents:
        raise ScenarioError(
            Problem("", "must hold a scenario", "an empty file", "See scenarios/ for examples."),
            str(path),
        )
    return [
        _build(document, values or {}, source=str(path), folder=path.parent)
        for document in documents
    ]


def from_dict(document: Mapping[str, Any], source: str) -> Scenario:
    """The scenario of plain values, as `Scenario.to_dict` gives them.

    Args:
        document: the values.
        source: what errors call them.

    Raises:
        ScenarioError: with every problem.
    """
    return _build(dict(document), {}, source=source, folder=None)


# -------------------------------------------------------------------- from raw values to a scenario


def _build(raw: Any, values: Mapping[str, Any], source: str, folder: Path | None) -> Scenario:
    if not isinstance(raw, dict):
        raise ScenarioError(
            Problem(
                "",
                "must be a mapping of keys",
                type(raw).__name__,
                "Start with name:, cluster:, world_size:, workload:.",
            ),
            source,
        )
    raw = copy.deepcopy(raw)
    problems: list[Problem] = []
    if "include" in values:
        raw["include"] = values["include"]
    origin = include(
        raw, folder, lambda key, value, found: _put(raw, key, value, folder, found), problems
    )
    for key, value in values.items():
        if key != "include":
            _set(raw, key, value, folder, problems)
            origin = {
                included: path for included, path in origin.items() if not related(included, key)
            }
    for key in sorted(_REFERENCES):
        _expand(raw, key, folder, problems)
    sweep = raw.get("sweep")
    if folder is not None and isinstance(sweep, dict) and isinstance(sweep.get("cluster"), list):
        for number, reference in enumerate(sweep["cluster"]):
            holder = {"cluster": reference}
            _expand(holder, "cluster", folder, problems)
            _locate_files(holder, folder)
            sweep["cluster"][number] = holder["cluster"]
    _locate_files(raw, folder)
    scenario, found = validated(raw, Scenario)
    broken = {problem.path for problem in problems}
    problems += [
        blame(p, origin)
        for p in found
        if not any(p.path == b or p.path.startswith(f"{b}.") for b in broken)
    ]
    if scenario is not None and not broken:
        problems += _meaning(scenario) + mismatches(
            scenario.calibrated, scenario.workload.model.name
        )
    if problems or scenario is None:
        raise ScenarioError(problems, source)
    return scenario


def _put(
    raw: dict[str, Any], key: str, value: Any, folder: Path | None, problems: list[Problem]
) -> None:
    """Set a dotted key, expanding what is only named on the way."""
    forget(raw, key)
    parts = key.split(".")
    at = raw
    for depth, part in enumerate(parts[:-1], 1):
        prefix = ".".join(parts[:depth])
        if prefix in _REFERENCES:
            _expand(raw, prefix, folder, problems)
        at = at.setdefault(part, {})
        if not isinstance(at, dict):
            problems.append(
                Problem(
                    key,
                    f"cannot be set: '{prefix}' holds a plain value",
                    repr(at),
                    f"Set {prefix} itself.",
                )
            )
            return
    at[parts[-1]] = copy.deepcopy(value)  # the caller keeps his


def _set(
    raw: dict[str, Any], key: str, value: Any, folder: Path | None, problems: list[Problem]
) -> None:
    """Set a dotted key as in `_put`, whatever the sweep says of it."""
    before = len(problems)
    _put(raw, key, value, folder, problems)
    if len(problems) > before:
        return
    raw.setdefault("sweep", {})
    if key != "sweep" and isinstance(raw["sweep"], dict):
        raw["sweep"].pop(key, None)
        for swept in list(raw["sweep"]):
            if str(swept).startswith(f"{key}."):
                raw["sweep"].pop(swept)
            elif key.startswith(f"{swept}."):
                problems.append(
                    Problem(
                        key,
                        f"has no effect: sweep.{swept} sets it for each run",
                        repr(value),
                        f"Set {swept} too.",
                    )
                )


def _expand(raw: dict[str, Any], key: str, folder: Path | None, problems: list[Problem]) -> None:
    """Replace a name by what it names."""
    *parents, last = key.split(".")
    at: Any = raw
    for part in parents:
        at = at.get(part) if isinstance(at, dict) else None
    if not isinstance(at, dict) or not isinstance(at.get(last), str):
        return
    try:
        at[last] = _own(raw.get(f"{last}s"), at[last]) or _named(last, at[last], folder)
    except InputError as error:
        problems += [
            Problem(f"{key}{f'.{p.path}' if p.path else ''}", p.rule, p.value, p.remedy)
            for p in error.problems
        ]


def _own(entries: Any, name: str) -> dict[str, Any] | None:
    """The entry of that name which the scenario itself brings, if it does."""
    entry = entries.get(name) if isinstance(entries, dict) else None
    return {"name": name, **copy.deepcopy(entry)} if isinstance(entry, dict) else None


def _named(key: str, text: str, folder: Path | None) -> Any:
    if key == "cluster":
        path = find(text, "topologies", folder)
        documents = read_yaml(path)
        if len(documents) != 1 or not isinstance(documents[0], dict):
            found = (
                f"{len(documents)} documents"
                if len(documents) != 1
                else type(documents[0]).__name__
            )
            raise ScenarioError(
                Problem(
                    "",
                    f"{path} must hold the mapping of one cluster",
                    found,
                    "See topologies/ for examples.",
                )
            )
        return documents[0]
    if key in {"model", "dataset"}:
        return catalog_entry(f"{key}s", text)
    return by_kind(text)


def _locate_files(raw: dict[str, Any], folder: Path | None) -> None:
    """Make the paths of a custom topology and of a recorded exchange absolute, and note what the
    files hold.

    So the resolved scenario stands alone.
    """
    for section, key, kind in (
        ("cluster", "topology", "custom"),
        ("workload", "exchange", "recorded"),
    ):
        holder = raw.get(section)
        record = holder.get(key) if isinstance(holder, dict) else None
        if (
            isinstance(record, dict)
            and record.get("kind") == kind
            and isinstance(record.get("path"), str)
        ):
            beside = (folder or Path()) / record["path"]
            path = beside if is_file(beside) else Path(record["path"])
            with contextlib.suppress(OSError, ValueError):
                record["path"] = str(path.resolve())
            if is_file(path):
                record.setdefault("sha256", hashlib.sha256(path.read_bytes()).hexdigest())


# ------------------------------------------------------------------- what the numbers mean together


def _meaning(scenario: Scenario) -> list[Problem]:
    """Problems of values that are fine one by one."""
    cluster, workload = scenario.cluster, scenario.workload
    problems = (
        _too_many_ranks(scenario)
        + _workload_problems(cluster, workload)
        + _recorded_problems(scenario)
    )
    problems += storage_problems(cluster, workload, scenario.world_size, scenario.storage_per_host)
    for key, values in scenario.sweep.items():
        if not values:
            problems.append(
                Problem(
                    f"sweep.{key}",
                    "must list at least one value",
                    "none",
                    "Add values or remove the key.",
                )
            )
    for key in scenario.sweep:
        if key.split(".")[0] == "sweep":
            problems.append(
                Problem(
                    f"sweep.{key}",
                    "cannot be swept",
                    "a mapping",
                    "Write each of its keys as a key of the sweep.",
                )
            )
    return problems


def _recorded_problems(scenario: Scenario) -> list[Problem]:
    """A recorded exchange that cannot be read, or is of another scale."""
    exchange = scenario.workload.exchange
    if not isinstance(exchange, Recorded):
        return []
    try:
        return exchange.check(
            scenario.workload.dataset.num_samples, scenario.world_size, scenario.epochs
        )
    except InputError as error:
        return [
            Problem(f"workload.exchange.{p.path or 'path'}", p.rule, p.value, p.remedy)
            for p in error.problems
        ]


def _too_many_ranks(scenario: Scenario) -> list[Problem]:
    """More ranks than GPUs or samples, or a topology that cannot be read."""
    cluster, samples, ranks = (
        scenario.cluster,
        scenario.workload.dataset.num_samples,
        scenario.world_size,
    )
    problems: list[Problem] = []
    try:
        graph = network_graph(cluster)
        hosts = sum(1 for _, kind in graph.nodes(data="kind") if kind == "host")
        gpus = hosts * cluster.host.gpus
        if ranks > gpus:
            rule = (
                f"must not exceed the {gpus} GPUs of {cluster.name} ({hosts} hosts with"
                f" {cluster.host.gpus})"
            )
            problems.append(
                Problem(
                    "world_size",
                    rule,
                    str(ranks),
                    f"Use at most {gpus} ranks or a larger topology.",
                )
            )
    except InputError as error:
        where = "cluster.topology.path"
        problems += [
            (
                p
                if p.path.startswith("cluster")
                else Problem(
                    where, f"{error.source}: {p.path or 'the file'} {p.rule}", p.value, p.remedy
                )
            )
            for p in error.problems
        ]
    if ranks > samples:
        problems.append(
            Problem(
                "world_size",
                f"must not exceed the {samples} samples",
                str(ranks),
                "Use fewer ranks.",
            )
        )
    return problems


def _workload_problems(cluster: Cluster, workload: Workload) -> list[Problem]:
    """What the workload asks for and the hosts do not have, or what does not go together in it."""
    problems: list[Problem] = []
    if cluster.host.accelerator not in workload.model.accelerators:
        known = sorted(workload.model.accelerators)
        problems.append(
            Problem(
                "workload.model.accelerators",
                f"needs the step times of {workload.model.name} on the cluster's accelerator",
                repr(cluster.host.accelerator),
                f"Add workload.model.accelerators.{cluster.host.accelerator} with forward,"
                f" backward, update. {nearest('', known)}",
            )
        )
    key = workload.allreduce.one_for_each_hca
    count = getattr(workload.allreduce, key)
    if count > cluster.host.hcas:
        rule = f"each of the {key} has an HCA of its own; the hosts have {cluster.host.hcas}"
        problems.append(
            Problem(
                f"workload.allreduce.{key}",
                rule,
                str(count),
                f"Use at most {cluster.host.hcas} {key}.",
            )
        )
    if workload.loader.across_epochs and workload.exchange.exchange_schedule is not None:
        rule = (
            "cannot be used where samples move: what the next epoch reads is known only when this"
            " one has ended"
        )
        found = f"true with {workload.exchange.kind}"
        remedy = "Leave it out, or choose a strategy without exchange."
        problems.append(Problem("workload.loader.across_epochs", rule, found, remedy))
    return problems
