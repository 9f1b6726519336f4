"""What the values of a scenario mean together: problems of values that are fine one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from simshuffle.allreduce import Allreduce, NoOverlap
from simshuffle.errors import InputError, Problem, first_of
from simshuffle.exchange import LoaderShuffle, Recorded
from simshuffle.parallelism import Data
from simshuffle.scenario.cluster import PLACEMENTS, Cluster
from simshuffle.scenario.context import shards_context
from simshuffle.scenario.workload import Workload
from simshuffle.spec.library import nearest
from simshuffle.spec.overrides import grid_problems
from simshuffle.spec.units import Dimension, readable


def cross_field_problems(
    cluster: Cluster, workload: Workload, world_size: int, epochs: int, seed: int
) -> list[Problem]:
    """What keeps ``world_size`` ranks from running ``epochs`` epochs of a workload on a cluster,
    with what ``seed`` draws."""
    return (
        cluster_problems(cluster, world_size)
        + _workload_problems(cluster, workload, world_size)
        + division_problems(workload, world_size)
        + _token_problems(workload)
        + _recorded_problems(workload, world_size, epochs)
        + _order_problems(cluster, workload, world_size, seed)
        + _storage_problems(cluster, workload, world_size)
        + _object_store_problems(cluster, workload)
    )


def division_problems(workload: Workload, world_size: int) -> list[Problem]:
    """What keeps ``world_size`` ranks from dividing training as ``workload.parallelism`` says."""
    strategy, layers = workload.parallelism, workload.model.layer_list
    if isinstance(strategy, Data):
        return []
    problems = []
    if layers is None:
        rule = f"must be a list of layers where training is divided by {strategy.kind}"
        remedy = "Name one that comes with simshuffle, write your own, or use parallelism data."
        problems.append(
            Problem("workload.model.layers", rule, f"none for {workload.model.name}", remedy)
        )
    else:
        found = strategy.problems(layers, world_size, workload.local_batch_size)
        problems += [problem.below("workload") for problem in found]
    overlap = workload.allreduce.overlap
    if not isinstance(overlap, NoOverlap):
        rule = f"must be none where training is divided by {strategy.kind}"
        remedy = "Set workload.allreduce.overlap=none, or use parallelism data."
        problems.append(Problem("workload.allreduce.overlap", rule, overlap.kind, remedy))
    return problems


def sweep_problems(sweep: Mapping[str, list[Any]]) -> list[Problem]:
    """What keeps a sweep from being a grid of runs."""
    return [problem.below("sweep") for problem in grid_problems(sweep)] + [
        Problem(
            f"sweep.{key}",
            "cannot be swept",
            "a mapping",
            "Write each of its keys as a key of the sweep.",
        )
        for key in sweep
        if key.split(".")[0] == "sweep"
    ]


def cluster_problems(cluster: Cluster, world_size: int) -> list[Problem]:
    """More ranks than GPUs, more HCAs than links, hosts that cannot be placed on as named, or a
    topology that cannot be used."""
    try:
        gpus, links = cluster.num_gpus, cluster.links_per_host
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
    problems, hcas = _cut_problems(cluster), cluster.host.hcas
    if links != hcas and cluster.topology.hcas_are_rails:
        problems.append(
            Problem(
                "cluster.host.hcas",
                "every host needs one HCA for each rail of the topology",
                f"{hcas} HCA{'s' * (hcas > 1)}, but {links} rail{'s' * (links > 1)}",
                f"Set cluster.host.hcas: {links}, or cluster.topology.rails: {hcas}.",
            )
        )
    elif links < hcas:
        problems.append(
            Problem(
                "cluster.host.hcas",
                "every host needs a link to a switch for each HCA",
                f"{hcas} HCAs, but hosts with {links} links",
                "Lower cluster.host.hcas or add links.",
            )
        )
    if world_size > gpus:
        rule = (
            f"must not exceed the {gpus} GPUs of {cluster.name}"
            f" ({cluster.num_hosts} hosts with {cluster.host.gpus})"
        )
        remedy = f"Use at most {gpus} ranks or a larger topology."
        problems.append(Problem("world_size", rule, str(world_size), remedy))
    return problems + _scale_up_problems(cluster) + _placement_problems(cluster, world_size)


def _cut_problems(cluster: Cluster) -> list[Problem]:
    """Hosts that are cut off from the others and not from those of their scale-up domain."""
    lost = cluster.topology.num_hosts - cluster.num_hosts
    if not lost or cluster.topology.domains is None:
        return []
    rule = "must cut off no host of a scale-up domain, which joins it to others beside the network"
    remedy = "Name hosts by cluster.placement, or leave a share above 0."
    return [Problem("cluster.faults", rule, f"{lost} hosts cut off", remedy)]


def _scale_up_problems(cluster: Cluster) -> list[Problem]:
    """More bandwidth between the hosts of a domain than their GPUs have."""
    domains, most = cluster.topology.domains, cluster.host.nvlink_bandwidth
    if domains is None or domains.bandwidth <= most:
        return []
    own = readable(most, Dimension.BANDWIDTH)
    rule = f"of a GPU must not exceed cluster.host.nvlink_bandwidth, {own}, over which it goes"
    remedy = "Lower it, or raise cluster.host.nvlink_bandwidth."
    return [
        Problem(
            "cluster.topology.scale_up.bandwidth",
            rule,
            readable(domains.bandwidth, Dimension.BANDWIDTH),
            remedy,
        )
    ]


def _placement_problems(cluster: Cluster, world_size: int) -> list[Problem]:
    """Hosts that are named twice, or too few of them, or in a text that is no list of them. Whether
    the topology has them is seen where it is built."""
    path = "cluster.placement"
    try:
        named = cluster.named_hosts
    except InputError as error:
        return [problem.below(path) for problem in error.problems]
    if named is None:
        return []
    twice = [name for name, count in Counter(named).items() if count > 1]
    if twice:
        found = f"several times {first_of(twice)}"
        return [Problem(path, "must name each host once", found, "Name each once.")]
    need = cluster.hosts_for(world_size)
    if need > len(named):
        rule = (
            f"must be {', '.join(PLACEMENTS)}, or name the {need} hosts that {world_size} ranks"
            " fill"
        )
        found = f"{len(named)} of them: {first_of(named)}" if named else "none"
        return [Problem(path, rule, found, "Name more hosts, or use fewer ranks.")]
    return []


def allreduce_problems(cluster: Cluster, allreduce: Allreduce) -> list[Problem]:
    """More rings or channels than HCAs of a host, or of a scale-up domain."""
    key, hcas = allreduce.one_for_each_hca, cluster.hcas_per_domain
    count = getattr(allreduce, key)
    if count is None or count <= hcas:
        return []
    owners = "hosts" if cluster.hosts_per_domain == 1 else "scale-up domains"
    rule = f"each of the {key} has an HCA of its own; the {owners} have {hcas}"
    path = f"workload.allreduce.{key}"
    remedy = f"Use at most {hcas} {key}, or leave it out: one for each HCA."
    return [Problem(path, rule, str(count), remedy)]


def _workload_problems(cluster: Cluster, workload: Workload, world_size: int) -> list[Problem]:
    """What the workload asks for and the hosts do not have, or what does not go together in it."""
    problems: list[Problem] = []
    samples = workload.dataset.num_samples
    if world_size > samples:
        rule = f"must not exceed the {samples} samples"
        problems.append(Problem("world_size", rule, str(world_size), "Use fewer ranks."))
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
    problems += allreduce_problems(cluster, workload.allreduce)
    if workload.loader.across_epochs and workload.exchange.exchange_schedule is not None:
        rule = (
            "cannot be used where samples move: what the next epoch reads is known only when this"
            " one has ended"
        )
        found = f"true with {workload.exchange.kind}"
        remedy = "Leave it out, or choose a strategy without exchange."
        problems.append(Problem("workload.loader.across_epochs", rule, found, remedy))
    return problems


def _token_problems(workload: Workload) -> list[Problem]:
    """Sequences of another length than those that the model's layers take, and attention within
    documents of a model of which nobody says what attention takes."""
    tokens, known = workload.dataset.tokens, workload.model.attention
    if tokens is None:
        return []
    path = "workload.dataset.tokens"
    if known is not None and known[0] != tokens.sequence_length:
        rule = f"must be the {known[0]} tokens that the layers of {workload.model.name} take"
        remedy = f"Use {known[0]}, or a model whose step times are of such sequences."
        found = str(tokens.sequence_length)
        return [Problem(f"{path}.sequence_length", rule, found, remedy)]
    if tokens.attention == "documents" and tokens.attention_share is None and known is None:
        rule = f"is required: no layers with attention are known of {workload.model.name}"
        remedy = "Write it, for example 0.14, or set workload.model.layers."
        return [Problem(f"{path}.attention_share", rule, "", remedy)]
    return []


def _recorded_problems(workload: Workload, world_size: int, epochs: int) -> list[Problem]:
    """A recorded exchange that cannot be read, or is of another scale."""
    if not isinstance(workload.exchange, Recorded):
        return []
    try:
        return workload.exchange.check(workload.dataset.num_samples, world_size, epochs)
    except InputError as error:
        return [
            Problem(f"workload.exchange.{p.path or 'path'}", p.rule, p.value, p.remedy)
            for p in error.problems
        ]


def _order_problems(
    cluster: Cluster, workload: Workload, world_size: int, seed: int
) -> list[Problem]:
    """A loader's order that cannot be drawn so, or a cache that is no use."""
    exchange, dataset = workload.exchange, workload.dataset
    if not isinstance(exchange, LoaderShuffle) or world_size > dataset.num_samples:
        return []
    problems = []
    if workload.last_batch == "carry":
        rule = "must not be carry: a loader's order ends with its epoch"
        remedy = "Choose nearest, keep or drop."
        problems.append(Problem("workload.last_batch", rule, "carry", remedy))
    owner = np.broadcast_to(np.int32(0), dataset.num_samples)
    rng = np.random.default_rng(0)
    context = shards_context(cluster, workload, owner, world_size, 1, rng, seed)
    try:
        exchange.check(context)
    except InputError as error:
        problems += [problem.below("workload.exchange") for problem in error.problems]
    else:
        most = cluster.capacity(exchange.cache_in)
        problems += [
            problem.below("workload.exchange")
            for problem in exchange.cache_problems(dataset.stored.mean, most)
        ]
    return problems


def _storage_problems(cluster: Cluster, workload: Workload, world_size: int) -> list[Problem]:
    """What a host must keep and has no room for."""
    need = workload.stored_nbytes(world_size, cluster.ranks_per_host(world_size))
    in_memory = workload.source == "memory"
    have = cluster.memory.capacity if in_memory else cluster.ssd.capacity
    if need <= have:
        return []
    dataset, where = workload.dataset, "in the memory" if in_memory else "on the SSD"
    rule = (
        f"{workload.exchange.kind} keeps {readable(need, Dimension.NBYTES)} of {dataset.name}"
        f" ({readable(dataset.nbytes, Dimension.NBYTES)}) {where} of each of"
        f" {cluster.hosts_for(world_size)} hosts, which holds {readable(have, Dimension.NBYTES)}"
    )
    remedy = (
        "Use global_shuffle:source=pfs, or local_shuffle or partial_local_shuffle on more hosts"
        + (", or workload.staging.target: ssd." if in_memory else ".")
    )
    found = f"{readable(need - have, Dimension.NBYTES)} too much"
    return [Problem("workload.exchange", rule, found, remedy)]


def _object_store_problems(cluster: Cluster, workload: Workload) -> list[Problem]:
    """An object store that is read from and that the cluster does not have."""
    if cluster.object_store is not None:
        return []
    named = {
        "workload.exchange.source": workload.exchange.tier,
        "workload.staging.source": workload.staging.source,
    }
    rule = f"needs an object store, and {cluster.name} has none"
    remedy = "Add cluster.object_store, {} for Amazon S3 as it is by default, or read from the pfs."
    return [Problem(key, rule, of, remedy) for key, of in named.items() if of == "object_store"]
