"""Scenario: a cluster, a workload, and how many ranks, epochs and seeds. Read from
YAML, checked whole, written back with units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, PrivateAttr, field_validator

from simshuffle.errors import InputError, Problem, ScenarioError
from simshuffle.fabric.network import Fluid, Network
from simshuffle.job.reliability import Failures
from simshuffle.job.scenario.background import Background, background_problems
from simshuffle.job.scenario.cache_tier import CacheTier
from simshuffle.job.scenario.calibrated import Calibrated, blame, mismatches
from simshuffle.job.scenario.checks import cross_field_problems, sweep_problems
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.job.scenario.faults import Fault, host_names
from simshuffle.job.scenario.jobs import Job, problem_of, together_problems
from simshuffle.job.scenario.measured import MeasuredEpoch
from simshuffle.job.scenario.model import ModelProfile, StepTimes
from simshuffle.job.scenario.reading import by_content, files, resolve
from simshuffle.job.scenario.recovery import Recovery, recovery_problems
from simshuffle.job.scenario.workload import Workload
from simshuffle.spec.arrays import Ints
from simshuffle.spec.library import find_file, read_yaml, write_yaml
from simshuffle.spec.overrides import add_axis_values, combination_name, grid
from simshuffle.spec.record import CacheArgument, Count, Share, Spec
from simshuffle.spec.rng import stream
from simshuffle.spec.switching import warn_of_switches
from simshuffle.spec.validation import drop_reported_problems, validate_record
from simshuffle.workload.exchange import ShardsContext

MOST_TRIED = 200
"""Combinations of a sweep that are tried, if one is not valid, to find the others that
are not.
"""


def _no_notes() -> CacheArgument[list[Problem]]:
    """Return an empty list of notes; its key is that of any other notes."""
    return CacheArgument(None, [])


class Scenario(Spec):
    """An experiment: a workload on a cluster, with seeds, epochs and tolerances.

    With a ``time_tolerance`` of 1 %, an epoch is simulated until the mean of an
    iteration and of each of its phases is known to 1 % of the iteration, at 95 %; that
    mean stands for the iterations that are left out. Where they keep changing, all are
    simulated.

    Attributes:
        name: of the scenario, also in the name of the result folder.
        description: in words.
        cluster: the machine.
        world_size: M, ranks, one for each GPU; at most the GPUs of the machine, and the
            samples of the data set.
        epochs: how many are simulated; the first is cold.
        seed: of all that is drawn.
        workload: what every rank does.
        network: how cables are shared.
        faults: what is slow, or fails, at a time in the run; 'cluster.faults' has what
            is so for ever.
        time_tolerance: 0 simulates every iteration; with '1 %' a part of each epoch
            stands for the rest where it may.
        jobs: several jobs on the machine, by name, each with what differs from this
            scenario.
        background: traffic of others, beside the job or the jobs.
        sweep: lists of values by dotted key; every combination is a run, and the last
            key varies fastest.
        models: profiles by name, which 'workload.model' may name before those of the
            catalog.
        calibrated: which of the values were measured, and how far they hold.
        measured: runs of this training that were measured; intervals take them in.
        failures: how often hosts fail, or a name of the catalog; if left out, none
            does. An epoch is simulated without them: `simshuffle month` has them.
        recovery: what the job does when a host fails.
    """

    name: str
    description: str = ""
    cluster: Cluster
    world_size: Count
    epochs: Count = 2
    seed: Annotated[int, Field(ge=0)] = 0
    workload: Workload
    network: Network = Fluid()
    faults: list[Fault] | None = None
    time_tolerance: Share = 0.0
    jobs: dict[str, Job] | None = None
    background: list[Background] | None = None
    sweep: dict[str, list[Any]] = Field(default_factory=dict)
    models: dict[str, ModelProfile] = Field(default_factory=dict)
    calibrated: list[Calibrated] = Field(default_factory=list)
    measured: list[MeasuredEpoch] = Field(default_factory=list)
    failures: Failures | None = None
    recovery: Recovery | None = None
    # compared as equal: what is said of two scenarios makes them no different
    _notes: CacheArgument[list[Problem]] = PrivateAttr(default_factory=_no_notes)

    @field_validator("models", mode="before")
    @classmethod
    def _names(cls, models: Any) -> Any:
        """Give each profile its key as name, unless it says another."""
        if not isinstance(models, dict):
            return models
        return {
            key: {"name": key, **model} if isinstance(model, dict) else model
            for key, model in models.items()
        }

    @property
    def notes(self) -> list[Problem]:
        """Problems of values of the scenario's file that belong to other kinds than its
        records have.
        """
        return self._notes.argument

    def with_notes(self, notes: Sequence[Problem]) -> Scenario:
        """Return a copy with more notes; the scenario itself if ``notes`` is empty."""
        if not notes:
            return self
        scenario = self.model_copy()
        scenario._notes = CacheArgument(None, [*self.notes, *notes])
        return scenario

    def rng(self, name: str, *numbers: int) -> np.random.Generator:
        """Return the random stream of a name and numbers, such as the epoch:
        independent of every other stream, and equal on every machine.
        """
        return stream(self.seed, name, *numbers)

    def shards_context(self, owner: Ints, epoch: int) -> ShardsContext:
        """Return the inputs that decide which rank trains on which samples in an epoch
        (from 1), given the rank (N,) of each sample.
        """
        rng = self.rng("shuffle", epoch)
        return self.workload.shards_context(
            self.cluster, owner, self.world_size, epoch, rng=rng, seed=self.seed
        )

    def with_values(self, values: Mapping[str, Any]) -> Scenario:
        """A new scenario with other values, by dotted key; checked like a file. A key
        that is set is no longer swept. Paths begin from the working directory. Raises a
        ScenarioError if a key or a value is not valid.
        """
        return _build(self.to_dict(), values, source=self.name, folder=None).with_notes(
            self.notes
        )

    def runs(self) -> dict[str, Scenario]:
        """The runs of the sweep by name, in its order; a scenario without sweep is one
        run. Raises a ScenarioError if a combination is not valid, or two have one name.
        """
        return self.combinations(self.sweep)

    def of_jobs(self) -> dict[str, Scenario]:
        """Each job as a scenario of its own, by the job's name; {} without jobs.

        Sweep, background and the notes of this scenario are left out. A job need not
        name its hosts. Raises a ScenarioError, with the problems of all jobs, if one is
        not valid.
        """
        base = self.model_copy(
            update={"jobs": None, "background": None, "sweep": {}}
        ).to_dict()
        out = dict[str, Scenario]()
        problems = list[Problem]()
        for name, job in (self.jobs or {}).items():
            try:
                out[name] = _build(base, job.values(), source=self.name, folder=None)
            except ScenarioError as error:
                problems += [problem_of(name, problem) for problem in error.problems]
        if problems:
            raise ScenarioError(problems, self.name)
        return out

    def combinations(self, axes: Mapping[str, Sequence[Any]]) -> dict[str, Scenario]:
        """Return a run without sweep for each combination of values, by its name.

        ``axes`` have values by dotted key; without any it is one run.

        Raises:
            InputError: the axes make no grid, a combination is not valid, or two have
                one name.
        """
        base = self.model_copy(update={"sweep": {}})
        document = base.to_dict()
        runs: dict[str, Scenario] = {}
        problems: list[Problem] = []
        for index, values in enumerate(grid(axes)):
            if problems and index >= MOST_TRIED:
                break
            try:
                run = (
                    _build(document, values, source=self.name, folder=None)
                    if values
                    else base
                )
            except ScenarioError as error:
                problems += [
                    add_axis_values(problem, axes, values) for problem in error.problems
                ]
                continue
            name = f"{run.label()} {combination_name(values, KEYS_IN_LABEL)}".rstrip()
            if name in runs:
                rule = "two runs must not have the same name"
                problem = Problem("sweep", rule, repr(name), "Use distinct values.")
                raise ScenarioError(problem, self.name)
            runs[name] = run if run is base else run.with_notes(self.notes)
        if problems:
            raise ScenarioError(list(dict.fromkeys(problems)), self.name)
        return runs

    def label(self) -> str:
        """Strategy, schedule and world size, such as 'partial-0.1 streamlined @2048';
        without exchange the source of the samples, such as 'global-pfs @512', unless
        local shuffle reads SSDs: 'local @512'.
        """
        exchange = self.workload.exchange
        schedule = self.workload.exchange.exchange_schedule
        detail = ""
        if exchange.fraction:
            detail = f"-{exchange.fraction:g}"
            detail += f" {schedule.name}" if schedule is not None else ""
        elif exchange.fraction is None or exchange.tier != "ssd":
            detail = f"-{exchange.tier}"
        return f"{exchange.short_name}{detail} @{self.world_size}"

    def to_dict(self) -> dict[str, Any]:
        """The resolved scenario as plain values, quantities as text with units; keys
        that are None are left out, and so are the notes and empty lists of measurements.
        """
        lists = {"calibrated", "measured"}
        empty = {name for name in lists if not getattr(self, name)}
        return self.model_dump(mode="json", exclude_none=True, exclude=empty)

    def to_yaml(self) -> str:
        """The resolved scenario as YAML that `load_scenario` reads back to an equal
        one.
        """
        return write_yaml(self.to_dict())

    @property
    def lost_hosts(self) -> list[Fault]:
        """The faults of whole hosts that fail at a given time (rate 0); not drawn ones.
        Raises a TopologyError if the network cannot be used.
        """
        failed = [
            fault
            for fault in self.faults or ()
            if fault.rate == 0 and fault.at is not None
        ]
        return [fault for fault in failed if fault.what in host_names(self.cluster)]

    @property
    def step_times(self) -> StepTimes:
        """The step times of the model on the cluster's accelerators."""
        return self.workload.model.accelerators[self.cluster.host.accelerator]

    @property
    def hosts(self) -> int:
        """Hosts that the ranks fill."""
        return self.cluster.hosts_for(self.world_size)

    @property
    def used_tier(self) -> CacheTier | None:
        """The cluster's cache tier, if samples are read through it; None where they
        come from the hosts.
        """
        behind = self.workload.source in {"pfs", "object_store"}
        return self.cluster.cache_tier if behind else None

    @property
    def storage_per_host(self) -> float:
        """Largest number of bytes that one host keeps of what is staged: (1 + Q) N/M
        size for each of its ranks; 0 where samples are not read from hosts.
        """
        ranks = self.cluster.ranks_per_host(self.world_size)
        return self.workload.stored_nbytes(self.world_size, ranks)


def serialise_scenarios(scenarios: Sequence[Scenario]) -> tuple[str, dict[str, Path]]:
    """Return scenarios as a result folder holds them: YAML documents, and files by
    name.

    In the documents files are named as `simshuffle.job.scenario.reading` does.
    """
    documents = [scenario.to_dict() for scenario in scenarios]
    return "---\n".join(write_yaml(by_content(values)) for values in documents), files(
        documents
    )


KEYS_IN_LABEL = {
    "workload.exchange",
    "world_size",
    "workload.exchange.exchange_fraction",
}
"""Keys whose values `Scenario.label` says already."""


def load_scenario(
    reference: str | Path, values: Mapping[str, Any] | None = None
) -> Scenario:
    """The one scenario of a file, or of a shipped file by its name in ``scenarios/``.
    ``values`` are set by dotted key, such as ``{"world_size": 512, "workload.exchange":
    "local_shuffle"}``. Raises a ScenarioError with every problem of the file, or if the
    file has no YAML document or several.
    """
    scenarios = load_scenarios(reference, values)
    if len(scenarios) != 1:
        rule = "must hold one scenario"
        remedy = "Use load_scenarios for several."
        problem = Problem("", rule, f"{len(scenarios)} documents", remedy)
        raise ScenarioError(problem, str(reference))
    return scenarios[0]


def load_scenarios(
    reference: str | Path, values: Mapping[str, Any] | None = None
) -> list[Scenario]:
    """Return all scenarios of a file, or of a shipped one: one for each YAML document.

    ``values`` by dotted key are set in each. Raises a ScenarioError if the file is
    empty, or with the problems of the first document that is not valid.
    """
    path = find_file(str(reference), "scenarios")
    documents = read_yaml(path)
    if not documents:
        remedy = "See scenarios/ for examples."
        problem = Problem("", "must hold a scenario", "an empty file", remedy)
        raise ScenarioError(problem, str(path))
    return [
        _build(document, values or {}, source=str(path), folder=path.parent)
        for document in documents
    ]


def from_dict(
    document: Mapping[str, Any], source: str, values: Mapping[str, Any] = {}
) -> Scenario:
    """The scenario of plain values, as `Scenario.to_dict` gives them, with other
    ``values`` by dotted key; errors call it ``source``. Paths begin from the working
    directory. Raises a ScenarioError with every problem.
    """
    return _build(dict(document), values, source=source, folder=None)


def all_runs(scenarios: Sequence[Scenario]) -> dict[str, Scenario]:
    """Return every run of every scenario by its name; the scenario's name goes in front
    where it is needed to tell them apart. Raises a ScenarioError if two runs have the
    same name, or a value of a sweep is not valid.
    """
    expanded = [(s.name, s.runs()) for s in scenarios]
    names = [name for _, runs in expanded for name in runs]
    out: dict[str, Scenario] = {}
    for scenario_name, runs in expanded:
        for name, single in runs.items():
            full = name if names.count(name) == 1 else f"{scenario_name} {name}"
            if full in out:
                rule = "two runs must not be the same"
                remedy = "Give the scenarios different names."
                raise ScenarioError(Problem("name", rule, repr(full), remedy))
            out[full] = single
    return out


def machine_of(reference: str) -> Cluster:
    """The machine of a name or a file. Raises an InputError if there is none, or it is
    not valid.
    """
    resolved = resolve({"cluster": reference}, {}, None, Scenario)
    cluster = None
    problems = resolved.problems
    if not problems:
        cluster, problems = validate_record(resolved.document["cluster"], Cluster)
    if cluster is None or problems:
        raise InputError(problems, reference)
    return cluster


_KEYS_OF_DLIO = {"framework", "workflow", "reader", "data_reader", "train", "metric"}


def _build(
    raw: Any, values: Mapping[str, Any], source: str, folder: Path | None
) -> Scenario:
    """Build a scenario from raw values with ``values`` set, and check it as a whole.

    Paths begin from ``folder``; None for the working directory. Warns of values of
    another kind that are dropped or renamed, which become its notes.

    Raises:
        ScenarioError: with the problems that were found.
    """
    if not isinstance(raw, dict):
        remedy = "Start with name:, cluster:, world_size:, workload:."
        problem = Problem("", "must be a mapping of keys", type(raw).__name__, remedy)
        raise ScenarioError(problem, source)
    section = raw.get("workload", raw)
    if isinstance(section, dict) and len(_KEYS_OF_DLIO & {*section}) > 1:
        rule = "must be a scenario, and is a workload of DLIO"
        remedy = f"Make it one: simshuffle new NAME --from-dlio {source} --hosts N."
        raise ScenarioError(Problem("", rule, remedy=remedy), source)
    resolved = resolve(raw, values, folder, Scenario)
    problems = resolved.problems
    scenario, validation_problems = validate_record(resolved.document, Scenario)
    usable = scenario is not None and not problems
    problems += [
        blame(problem, resolved.origin)
        for problem in drop_reported_problems(validation_problems, problems)
    ]
    if scenario is not None and usable:
        problems += cross_field_problems(
            scenario.cluster,
            scenario.workload,
            scenario.world_size,
            scenario.epochs,
            scenario.seed,
        )
        problems += sweep_problems(scenario.sweep)
        problems += drop_reported_problems(recovery_problems(scenario), problems)
        problems += [] if problems else _neighbour_problems(scenario)
        problems += mismatches(scenario.calibrated, scenario.workload.model.name)
    if problems or scenario is None:
        raise ScenarioError(problems, source)
    return scenario.with_notes(warn_of_switches(resolved.switches))


def refuse_jobs(scenario: Scenario) -> None:
    """Raise a ScenarioError if a scenario has jobs, which only some verbs know."""
    if scenario.jobs is not None:
        rule = "is known to simshuffle run and check alone"
        remedy = "Leave it out: --set jobs=null."
        problem = Problem("jobs", rule, ", ".join(scenario.jobs)[:60], remedy)
        raise ScenarioError(problem, scenario.name)


def _neighbour_problems(scenario: Scenario) -> list[Problem]:
    """Return the problems of the jobs of a scenario, and of the background traffic; []
    without both.
    """
    jobs = scenario.jobs
    background = scenario.background
    if jobs is None and background is None:
        return []
    problems = list[Problem]()
    for key, value in (("jobs", jobs), ("background", background)):
        if value is not None and scenario.time_tolerance > 0:
            rule = f"must be 0 with {key}: no part of an epoch stands for the rest"
            problems.append(
                Problem(
                    "time_tolerance", rule, f"{scenario.time_tolerance:g}", "Set 0."
                )
            )
    if background is not None and not isinstance(scenario.network, Fluid):
        rule = "must be fluid with background, whose traffic is a share of links"
        problems.append(
            Problem("network.kind", rule, scenario.network.kind, "Set network: fluid.")
        )
    problems += background_problems(background or [])
    if jobs is not None:
        try:
            hosts = {name: job.hosts for name, job in scenario.of_jobs().items()}
        except ScenarioError as error:
            return [*problems, *error.problems]
        problems += together_problems(jobs, scenario.cluster, hosts)
    return problems
