"""A simshuffle scenario as a system and a case of the NoPFS model."""

from __future__ import annotations

from simshuffle.errors import InputError, Problem
from simshuffle.plan.resources import wiring
from simshuffle.scenario.scenario import Scenario
from simshuffle.spec.interpolation import Curve
from simshuffle.studies.policies.system import MOST_EPOCHS, Case, Servers, StorageClass, System


def case_of(scenario: Scenario) -> tuple[str, Case]:
    """Name and record of the scenario's data set, as a host reads it: the batch of a worker is that
    of all ranks of a host.

    Raises:
        InputError: there are more epochs than can be compared.
    """
    workload, dataset = scenario.workload, scenario.workload.dataset
    if scenario.epochs > MOST_EPOCHS:
        rule = f"policies are compared over at most {MOST_EPOCHS} epochs"
        raise InputError(
            Problem("epochs", rule, str(scenario.epochs), f"Use --set epochs={MOST_EPOCHS}."),
            scenario.name,
        )
    case = Case(
        num_samples=dataset.num_samples,
        sample_size=dataset.stored,
        local_batch_size=workload.local_batch_size * _ranks(scenario),
        epochs=scenario.epochs,
        source=f"scenario {scenario.name}",
    )
    return dataset.name, case


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
    cluster, workload, ranks = scenario.cluster, scenario.workload, _ranks(scenario)
    sample, step = (
        workload.dataset.stored.mean,
        workload.model.accelerators[cluster.host.accelerator],
    )
    train = step.per_sample + (step.fixed_seconds + step.update) / workload.local_batch_size
    threads = min(ranks * workload.loader.reads_in_flight, cluster.host.cores, 4096)
    dataset = workload.dataset
    cabling = wiring(cluster).cabling
    host = cabling.of_kind("host")[0]
    cables = float(sum(cabling.bandwidth[(cabling.ends == host).any(axis=1)].tolist()))
    memory, ssd, servers = cluster.memory, cluster.ssd, cluster.parallel_file_system
    client = (
        servers.client_bandwidth(scenario.hosts) if servers.client_bandwidth is not None else cables
    )
    held = workload.loader.prefetch * workload.local_batch_size * ranks * sample

    def in_memory(capacity: float) -> StorageClass:
        return _class(capacity, memory.bandwidth, memory.bandwidth, threads)

    return _checked(
        System.model_construct(
            workers=scenario.hosts,
            compute_bandwidth=scenario.world_size / scenario.hosts * sample / train,
            preprocess_bandwidth=threads * sample / dataset.decode_seconds
            if dataset.decode_seconds > 0
            else memory.bandwidth,
            network_bandwidth=cables,
            staging_buffer=in_memory(held),
            memory=in_memory(memory.cache_nbytes),
            ssd=_class(ssd.capacity, ssd.read_bandwidth, ssd.write_bandwidth, threads),
            parallel_file_system=Servers.model_construct(
                read_bandwidth=Curve((0.0,), (servers.free_bandwidth,), constant=True),
                client_bandwidth=min(cables, client),
                open_rate=servers.free_open_rate * dataset.samples_per_file,
                latency=servers.latency / dataset.read_at_once,
            ),
            source=f"scenario {scenario.name}",
        )
    )


def _ranks(scenario: Scenario) -> int:
    """Ranks of a full host."""
    return scenario.cluster.ranks_per_host(scenario.world_size)


def _class(capacity: float, read: float, write: float, threads: int) -> StorageClass:
    return StorageClass.model_construct(
        capacity=capacity, read_bandwidth=read, write_bandwidth=write, threads=threads, source=""
    )


def _checked(system: System) -> System:
    """The same from its own text form: quantities have to be given with units, and are checked on
    the way."""
    return System.model_validate(system.model_dump(exclude_none=True))
