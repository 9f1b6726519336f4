"""A study: one system and several cases, from a file, from those that simshuffle brings along, or
from a scenario."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.job.plan.wiring import wiring
from simshuffle.job.scenario.scenario import Scenario, load_scenario
from simshuffle.job.scenario.swept import EXCHANGE, single_run
from simshuffle.spec.interpolation import Curve
from simshuffle.spec.library import documents, is_file, nearest, read_yaml, shipped_names
from simshuffle.spec.overrides import put
from simshuffle.spec.record import Sourced
from simshuffle.spec.validation import validated
from simshuffle.studies.loader.policy_reads import (
    MOST_EPOCHS,
    PolicyCase,
    Servers,
    StorageClass,
    System,
)

VERB = "simshuffle study policies"
STUDIES = Path(__file__).parent / "studies"


class Cases(Sourced):
    """Cases on one system. ``seed`` decides who reads which sample in which epoch."""

    name: str
    description: str = ""
    seed: Annotated[int, Field(ge=0)] = 0
    system: System
    cases: Annotated[dict[str, PolicyCase], Field(min_length=1)]

    def to_yaml(self) -> str:
        """The study as YAML that `load` reads back to an equal one."""
        # not mode "json", whose keys are text: the places of a curve are numbers
        return yaml.safe_dump(
            self.model_dump(exclude_none=True), sort_keys=False, allow_unicode=True, width=130
        )

    def only(self, cases: list[str]) -> Cases:
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
        kept = {name: case for name, case in self.cases.items() if name in cases}
        return self.model_copy(update={"cases": kept}) if cases else self


def read(text: str, source: str) -> Cases:
    """The study that `Cases.to_yaml` wrote as ``text``.

    Raises:
        InputError: it is none.
    """
    found = documents(text, source)
    return _study(found[0] if found and isinstance(found[0], dict) else {}, {}, source)


def names() -> list[str]:
    """Names of the studies that simshuffle brings along."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def load(reference: str, values: Mapping[str, Any]) -> Cases:
    """The study of a file or of that name; or a scenario, as a study of one case, without its
    sweep; ``values`` are set by dotted key of either.

    Raises:
        InputError: there is none, or it is not valid; with every problem.
    """
    path = STUDIES / f"{reference}.yaml" if reference in names() else Path(reference)
    if is_file(path):
        found = read_yaml(path)
        if len(found) == 1 and isinstance(found[0], dict) and "system" in found[0]:
            return _study(found[0], values, str(path))
    elif path.suffix not in {".yaml", ".yml", ".json"}:
        known = shipped_names("scenarios")
        if reference not in known:
            remedy = nearest(reference, [*names(), *known])
            raise InputError(Problem("", "no such scenario or study", repr(reference), remedy))
    scenario = single_run(load_scenario(reference, values), VERB, (EXCHANGE,))
    cases = {scenario.workload.dataset.name: case_of(scenario)}
    system = system_of(scenario)
    return Cases(name=scenario.name, seed=scenario.seed, system=system, cases=cases)


def _study(raw: dict[Any, Any], values: Mapping[str, Any], source: str) -> Cases:
    raw = copy.deepcopy(raw)
    problems: list[Problem] = []
    for key, value in values.items():
        put(raw, key, value, problems, create=False)
    study, wrong = validated(raw, Cases)
    if study is None or problems or wrong:
        raise InputError([*problems, *wrong], source)
    return study


def case_of(scenario: Scenario) -> PolicyCase:
    """The scenario's data set, as a host reads it: the batch of a worker is that of all ranks of a
    host.

    Raises:
        InputError: there are more epochs than can be compared.
    """
    workload, dataset = scenario.workload, scenario.workload.dataset
    ranks = scenario.cluster.ranks_per_host(scenario.world_size)
    if scenario.epochs > MOST_EPOCHS:
        rule = f"policies are compared over at most {MOST_EPOCHS} epochs"
        remedy = f"Use --set epochs={MOST_EPOCHS}."
        refuse("epochs", rule, str(scenario.epochs), remedy, scenario.name)
    return PolicyCase(
        num_samples=dataset.num_samples,
        sample_size=dataset.stored,
        local_batch_size=workload.local_batch_size * ranks,
        epochs=scenario.epochs,
        source=f"scenario {scenario.name}",
    )


def system_of(scenario: Scenario) -> System:
    """The scenario's cluster; a worker is a host with all its ranks, since they share memory, SSD
    and cables.

    - c: ranks of a host, times bytes of a sample over its forward and backward pass and its part of
      the update. No allreduce, no jitter.
    - beta: cores in loading (reads in flight of all ranks, at most all cores), times bytes of a
      sample over its decoding.
    - b_c: all cables of a host. The file system: what other users leave of its bandwidth, the same
      for any number of readers, and of its rate of opening files; its latency; and as the most that
      one reader gets, the cables of a host and its client bandwidth with that many hosts. Samples
      of one file share its opening, those of one request its latency.
    - class 0: the batches that the loaders hold, in stored form; class 1: the page cache, at memory
      speed; class 2: the SSD.

    Congestion in the network and the cables of the file system are left out, which errs on the fast
    side.
    """
    cluster, workload = scenario.cluster, scenario.workload
    ranks = cluster.ranks_per_host(scenario.world_size)
    dataset, loader = workload.dataset, workload.loader
    sample, step = dataset.stored.mean, workload.model.accelerators[cluster.host.accelerator]
    train = step.per_sample + (step.fixed_seconds + step.update) / workload.local_batch_size
    threads = min(ranks * loader.reads_in_flight, cluster.host.cores, 4096)
    memory, ssd, servers = cluster.memory, cluster.ssd, cluster.parallel_file_system
    prepared = memory.bandwidth
    if dataset.decode_seconds > 0:
        prepared = threads * sample / dataset.decode_seconds
    cabling = wiring(cluster).fabric.cabling
    at_host = (cabling.ends == cabling.of_kind("host")[0]).any(axis=1)
    cables = client = float(sum(cabling.bandwidth[at_host].tolist()))
    if servers.client_bandwidth is not None:
        client = servers.client_bandwidth(scenario.hosts)

    def storage(capacity: float, read: float, write: float) -> StorageClass:
        of = {"capacity": capacity, "read_bandwidth": read, "write_bandwidth": write}
        return StorageClass.model_construct(None, **of, threads=threads, source="")

    def in_memory(capacity: float) -> StorageClass:
        return storage(capacity, memory.bandwidth, memory.bandwidth)

    system = System.model_construct(
        workers=scenario.hosts,
        compute_bandwidth=scenario.world_size / scenario.hosts * sample / train,
        preprocess_bandwidth=prepared,
        network_bandwidth=cables,
        staging_buffer=in_memory(loader.prefetch * workload.local_batch_size * ranks * sample),
        memory=in_memory(memory.cache_nbytes),
        ssd=storage(ssd.capacity, ssd.read_bandwidth, ssd.write_bandwidth),
        parallel_file_system=Servers.model_construct(
            read_bandwidth=Curve((0.0,), (servers.free_bandwidth,), constant=True),
            client_bandwidth=min(cables, client),
            open_rate=servers.free_open_rate * dataset.samples_per_file,
            latency=servers.latency / dataset.read_at_once,
        ),
        source=f"scenario {scenario.name}",
    )
    # from its own text form: quantities are given with units, and checked on the way
    return System.model_validate(system.model_dump(exclude_none=True))
