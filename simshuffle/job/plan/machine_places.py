"""Hosts and switches of the ranks of a job, on a machine that a file or a name
describes.
"""

from __future__ import annotations

import numpy as np

from simshuffle.errors import InputError, refuse
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.spec.library import find_file, read_yaml
from simshuffle.spec.validation import validate_record
from simshuffle.workload.exchange import RankPlaces


def places_on(machine: str, world_size: int) -> RankPlaces:
    """Return where ``world_size`` ranks are on a machine, given by its file or name.

    A scattered placement is drawn with a fixed seed, so every call gives the same.

    Raises:
        InputError: there is none, it cannot be read, or it has fewer GPUs than there
            are ranks.
    """
    path = find_file(machine, "topologies")
    documents = read_yaml(path)
    if len(documents) != 1 or not isinstance(documents[0], dict):
        rule = "must hold the mapping of one cluster"
        refuse("", rule, str(path), "See topologies/.", str(path))
    cluster, problems = validate_record(documents[0], Cluster)
    if cluster is None or problems:
        raise InputError(problems, str(path))
    if world_size > cluster.num_gpus:
        rule = f"must not exceed the {cluster.num_gpus} GPUs of {cluster.name}"
        refuse(
            "world_size",
            rule,
            str(world_size),
            "Use fewer ranks or a larger machine.",
            "run",
        )
    return Resources(cluster, world_size, np.random.default_rng(0)).places
