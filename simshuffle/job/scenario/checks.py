"""Checks of the values of a scenario together: problems of values that are fine one by
one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from simshuffle.errors import InputError, Problem, list_first
from simshuffle.fabric.allreduce import Allreduce, NoOverlap
from simshuffle.job.scenario.cluster import PLACEMENTS, Cluster
from simshuffle.job.scenario.workload import Workload
from simshuffle.spec.library import suggest_nearest
from simshuffle.spec.overrides import grid_problems
from simshuffle.spec.units import Dimension, readable
from simshuffle.workload.exchange import LoaderShuffle, Recorded
from simshuffle.workload.parallelism import Data


def cross_field_problems(
    cluster: Cluster, workload: Workload, world_size: int, epochs: int, seed: int
) -> Iterator[Problem]:
    """Yield the problems that keep ``world_size`` ranks from running ``epochs`` epochs
    of a workload on a cluster, with what ``seed`` draws.
    """
    yield from cluster_problems(cluster, world_size)
    yield from _workload_problems(cluster, workload, world_size)
    yield from _division_problems(workload, world_size)
    yield from _token_problems(workload)
    if isinstance(workload.exchange, Recorded):
        try:
            yield from workload.exchange.check(
                workload.dataset.num_samples, world_size, epochs
            )
        except InputError as error:
            for problem in error.problems:
                path = f"workload.exchange.{problem.path or 'path'}"
                yield Problem(path, problem.rule, problem.value, problem.remedy)
    yield from _order_problems(cluster, workload, world_size, seed)
    yield from _storage_problems(cluster, workload, world_size)
    if cluster.cache_tier is not None and workload.exchange.fetches:
        rule = (
            f"cannot be used with {workload.exchange.kind}, whose loaders fetch pieces"
        )
        remedy = "Leave it out, or use global_shuffle or local_shuffle."
        yield Problem("cluster.cache_tier", rule, "a cache", remedy)


def sweep_problems(sweep: Mapping[str, list[Any]]) -> Iterator[Problem]:
    """Yield the problems that keep a sweep from being a grid of runs; a sweep of
    ``sweep`` is one.
    """
    yield from (problem.below("sweep") for problem in grid_problems(sweep))
    for key in sweep:
        if key.split(".")[0] == "sweep":
            remedy = "Write each of its keys as a key of the sweep."
            yield Problem(f"sweep.{key}", "cannot be swept", "a mapping", remedy)


def cluster_problems(cluster: Cluster, world_size: int) -> list[Problem]:
    """Return the problems of a cluster for ``world_size`` ranks: more ranks than GPUs,
    HCAs that do not fit the links or rails, scale-up links faster than NVLink, hosts
    that cannot be placed on as named.

    If the topology cannot be used, only its problems. Whether it has the hosts that a
    placement names is not checked here.
    """
    try:
        cluster.num_hosts, cluster.links_per_host  # noqa: B018 - they raise
    except InputError as error:
        return [
            p
            if p.path.startswith("cluster")
            else Problem(
                "cluster.topology.path",
                f"{error.source}: {p.path or 'the file'} {p.rule}",
                p.value,
                p.remedy,
            )
            for p in error.problems
        ]
    return [
        *_machine_problems(cluster, world_size),
        *_placement_problems(cluster, world_size),
    ]


def _machine_problems(cluster: Cluster, world_size: int) -> Iterator[Problem]:
    """Yield the problems of hosts, links and scale-up domains with one another, and of
    more ranks than GPUs.
    """
    domains = cluster.topology.domains
    host = cluster.host
    links = cluster.links_per_host
    lost = cluster.topology.num_hosts - cluster.num_hosts
    if lost and domains is not None:
        # they would be cut off from other hosts, and not from those of their domain
        rule = "must cut off no host of a scale-up domain: the domain would still connect it"
        remedy = "Name hosts by cluster.placement, or leave a share above 0."
        yield Problem("cluster.faults", rule, f"{lost} hosts cut off", remedy)
    hcas = host.hcas
    if links != hcas and cluster.topology.hcas_are_rails:
        rule = "every host needs one HCA for each rail of the topology"
        value = f"{hcas} HCA{'s' * (hcas > 1)}, but {links} rail{'s' * (links > 1)}"
        remedy = f"Set cluster.host.hcas: {links}, or cluster.topology.rails: {hcas}."
        yield Problem("cluster.host.hcas", rule, value, remedy)
    elif links < hcas:
        rule = "every host needs a link to a switch for each HCA"
        value = f"{hcas} HCAs, but hosts with {links} links"
        yield Problem(
            "cluster.host.hcas", rule, value, "Lower cluster.host.hcas or add links."
        )
    if world_size > (gpus := cluster.num_gpus):
        rule = (
            f"must not exceed the {gpus} GPUs of {cluster.name}"
            f" ({cluster.num_hosts} hosts with {host.gpus})"
        )
        remedy = f"Use at most {gpus} ranks or a larger topology."
        yield Problem("world_size", rule, str(world_size), remedy)
    nvlink_bandwidth = host.nvlink_bandwidth
    if domains is not None and domains.bandwidth > nvlink_bandwidth:
        nvlink_text = readable(nvlink_bandwidth, Dimension.BANDWIDTH)
        rule = (
            f"of a GPU must not exceed cluster.host.nvlink_bandwidth, {nvlink_text}, over which it"
            " goes"
        )
        value = readable(domains.bandwidth, Dimension.BANDWIDTH)
        remedy = "Lower it, or raise cluster.host.nvlink_bandwidth."
        yield Problem("cluster.topology.scale_up.bandwidth", rule, value, remedy)


def _placement_problems(cluster: Cluster, world_size: int) -> Iterator[Problem]:
    """Yield a problem if hosts are named twice, if there are too few, or if their text
    is no list of hosts. Whether the topology has them is checked where it is built.
    """
    path = "cluster.placement"
    try:
        hosts = cluster.named_hosts
    except InputError as error:
        yield from (problem.below(path) for problem in error.problems)
        return
    if hosts is None:
        return
    num_needed = cluster.hosts_for(world_size)
    if twice := [name for name, count in Counter(hosts).items() if count > 1]:
        value = f"several times {list_first(twice)}"
        yield Problem(path, "must name each host once", value, "Name each once.")
    elif num_needed > len(hosts):
        rule = (
            f"must be {', '.join(PLACEMENTS)}, or name the {num_needed} hosts that {world_size}"
            " ranks fill"
        )
        value = f"{len(hosts)} of them: {list_first(hosts)}" if hosts else "none"
        yield Problem(path, rule, value, "Name more hosts, or use fewer ranks.")


def allreduce_problems(cluster: Cluster, allreduce: Allreduce) -> list[Problem]:
    """Return a problem if there are more rings, channels, leaders or rails than HCAs of
    a host, or of a scale-up domain; [] where their number is left out.
    """
    key = allreduce.one_for_each_hca
    hcas = cluster.hcas_per_domain
    count = getattr(allreduce, key)
    if count is None or count <= hcas:
        return []
    owners = "hosts" if cluster.hosts_per_domain == 1 else "scale-up domains"
    rule = f"each of the {key} has an HCA of its own; the {owners} have {hcas}"
    remedy = f"Use at most {hcas} {key}, or leave it out: one for each HCA."
    return [Problem(f"workload.allreduce.{key}", rule, str(count), remedy)]


def _workload_problems(
    cluster: Cluster, workload: Workload, world_size: int
) -> Iterator[Problem]:
    """Yield what the workload needs and the hosts do not have, and what does not go
    together in it.
    """
    samples = workload.dataset.num_samples
    accelerator = cluster.host.accelerator
    if world_size > samples:
        rule = f"must not exceed the {samples} samples"
        yield Problem("world_size", rule, str(world_size), "Use fewer ranks.")
    yield from _dropped_batches(workload, world_size)
    path = "workload.model.accelerators"
    times = workload.model.accelerators
    if accelerator not in times:
        rule = f"needs the step times of {workload.model.name} on the cluster's accelerator"
        remedy = f"Add {path}.{accelerator} with forward, backward, update."
        yield Problem(
            path,
            rule,
            repr(accelerator),
            f"{remedy} {suggest_nearest('', sorted(times))}",
        )
    yield from allreduce_problems(cluster, workload.allreduce)
    if (
        workload.loader.across_epochs
        and workload.exchange.exchange_schedule is not None
    ):
        rule = (
            "cannot be used where samples move: what the next epoch reads is known only when this"
            " one has ended"
        )
        value = f"true with {workload.exchange.kind}"
        remedy = "Leave it out, or choose a strategy without exchange."
        yield Problem("workload.loader.across_epochs", rule, value, remedy)


def _dropped_batches(workload: Workload, world_size: int) -> Iterator[Problem]:
    """Yield a problem if every batch is dropped: floor(N / (M b)) is 0. Not for more
    ranks than samples, which is a problem by itself.
    """
    samples = workload.dataset.num_samples
    batch = workload.local_batch_size
    if workload.last_batch != "drop" or not world_size <= samples < batch * world_size:
        return
    rule = (
        f"drops all: {samples} samples are less than a batch of {batch} on each of {world_size}"
        " ranks, so no step is made"
    )
    remedy = (
        f"Use at least {batch * world_size} samples, at most {samples // batch} ranks, batches of"
        f" at most {samples // world_size}, or last_batch: keep."
    )
    yield Problem("workload.last_batch", rule, "drop", remedy)


def _division_problems(workload: Workload, world_size: int) -> Iterator[Problem]:
    """Yield the problems that keep ``world_size`` ranks from dividing training as
    ``workload.parallelism`` says; none under data parallelism.
    """
    strategy = workload.parallelism
    layers = workload.model.layer_list
    if isinstance(strategy, Data):
        return
    if layers is None:
        rule = f"must be a list of layers where training is divided by {strategy.kind}"
        remedy = "Name one that comes with simshuffle, write your own, or use parallelism data."
        yield Problem(
            "workload.model.layers", rule, f"none for {workload.model.name}", remedy
        )
    else:
        for problem in strategy.problems(layers, world_size, workload.local_batch_size):
            yield problem.below("workload")
    overlap = workload.allreduce.overlap
    if not isinstance(overlap, NoOverlap):
        rule = f"must be none where training is divided by {strategy.kind}"
        remedy = "Set workload.allreduce.overlap=none, or use parallelism data."
        yield Problem("workload.allreduce.overlap", rule, overlap.kind, remedy)


def _token_problems(workload: Workload) -> Iterator[Problem]:
    """Yield a problem if sequences have another length than those that the model's
    layers take, or if attention stays within documents and its share is not known.
    """
    tokens = workload.dataset.tokens
    attention = workload.model.attention
    if tokens is None:
        return
    path = "workload.dataset.tokens"
    name = workload.model.name
    if attention is not None and attention[0] != tokens.sequence_length:
        rule = f"must be the {attention[0]} tokens that the layers of {name} take"
        remedy = (
            f"Use {attention[0]}, or a model whose step times are of such sequences."
        )
        yield Problem(
            f"{path}.sequence_length", rule, str(tokens.sequence_length), remedy
        )
    elif (
        tokens.attention == "documents"
        and tokens.attention_share is None
        and attention is None
    ):
        rule = f"is required: no layers with attention are known of {name}"
        remedy = "Write it, for example 0.14, or set workload.model.layers."
        yield Problem(f"{path}.attention_share", rule, "", remedy)


def _order_problems(
    cluster: Cluster, workload: Workload, world_size: int, seed: int
) -> Iterator[Problem]:
    """Yield the problems of a loader's order that cannot be drawn so, or of its cache;
    none for other strategies.
    """
    exchange = workload.exchange
    dataset = workload.dataset
    if not isinstance(exchange, LoaderShuffle) or world_size > dataset.num_samples:
        return
    if workload.last_batch == "carry":
        rule = "must not be carry: a loader's order ends with its epoch"
        yield Problem(
            "workload.last_batch", rule, "carry", "Choose nearest, keep or drop."
        )
    owner = np.broadcast_to(np.int32(0), dataset.num_samples)
    rng = np.random.default_rng(0)
    context = workload.shards_context(cluster, owner, world_size, 1, rng=rng, seed=seed)
    try:
        exchange.check(context)
    except InputError as error:
        problems = error.problems
    else:
        capacity = cluster.capacity(exchange.cache_in)
        problems = exchange.cache_problems(dataset.stored.mean, capacity)
    yield from (problem.below("workload.exchange") for problem in problems)


def _storage_problems(
    cluster: Cluster, workload: Workload, world_size: int
) -> Iterator[Problem]:
    """Yield a problem if a host has no room for what it must keep, or if the cluster
    lacks the object store that is read from.
    """
    needed_nbytes = workload.stored_nbytes(
        world_size, cluster.ranks_per_host(world_size)
    )
    in_memory = workload.source == "memory"
    dataset = workload.dataset
    capacity = cluster.capacity("memory" if in_memory else "ssd")
    if needed_nbytes > capacity:
        where = "in the memory" if in_memory else "on the SSD"
        rule = (
            f"{workload.exchange.kind} keeps {readable(needed_nbytes, Dimension.NBYTES)} of"
            f" {dataset.name} ({readable(dataset.nbytes, Dimension.NBYTES)}) {where} of each of"
            f" {cluster.hosts_for(world_size)} hosts, which holds"
            f" {readable(capacity, Dimension.NBYTES)}"
        )
        remedy = (
            "Use global_shuffle:source=pfs, or local_shuffle or partial_local_shuffle on more hosts"
            + (", or workload.staging.target: ssd." if in_memory else ".")
        )
        value = f"{readable(needed_nbytes - capacity, Dimension.NBYTES)} too much"
        yield Problem("workload.exchange", rule, value, remedy)
    if cluster.object_store is None:
        rule = f"needs an object store, and {cluster.name} has none"
        remedy = "Add cluster.object_store, {} for Amazon S3 as it is by default, or read from the"
        for key, source in {
            "workload.exchange.source": workload.exchange.tier,
            "workload.staging.source": workload.staging.source,
        }.items():
            if source == "object_store":
                yield Problem(key, rule, source, f"{remedy} pfs.")
        if workload.checkpoint is not None and workload.checkpoint.needs_store:
            remedy = "Add cluster.object_store, {} for Amazon S3 as it is by default, or use pfs."
            yield Problem("workload.checkpoint", rule, "object_store", remedy)
