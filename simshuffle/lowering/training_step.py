"""What a scenario trains, and who sends to whom, as ways to divide training see it."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from simshuffle.allreduce import NoOverlap
from simshuffle.allreduce.overlap import Overlapping
from simshuffle.errors import Problem, ScenarioError
from simshuffle.layers import INPUT, Layer, LayerList
from simshuffle.lowering.communicators import Communicators
from simshuffle.parallelism import Data, Job
from simshuffle.plan.resources import Resources
from simshuffle.scenario.cluster import Cluster
from simshuffle.scenario.model import ModelProfile, StepTimes
from simshuffle.scenario.workload import Workload
from simshuffle.spec.arrays import Floats
from simshuffle.spec.rng import stream

VALUE_NBYTES = 4
"""Bytes of a parameter or an input of a model that does not say how many it has."""


class Trains(Protocol):
    """What is read of a scenario."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def cluster(self) -> Cluster:
        """The machine."""

    @property
    def workload(self) -> Workload:
        """What every rank does."""

    @property
    def world_size(self) -> int:
        """M."""

    @property
    def seed(self) -> int:
        """Of what is drawn."""


def job_of(scenario: Trains, world_size: int | None = None, layers: LayerList | None = None) -> Job:
    """What a scenario trains, on ``world_size`` ranks or its own.

    Times are those of one GPU, from the step times of its accelerator: of layers by
    `LayerList.shares`. What the overlap's hooks take counts as fixed; that the backward pass is
    slower while gradients travel is left out.

    ``layers`` are those of the model, if they are known already. Raises a ScenarioError if training
    is divided by layers, and the model does not list them.
    """
    workload = scenario.workload
    model, overlap = workload.model, workload.allreduce.overlap
    layers = layers or layers_of(scenario)
    times = model.accelerators[scenario.cluster.host.accelerator]
    world_size = world_size or scenario.world_size
    each = times.per_sample / (times.forward + times.backward_seconds)
    return Job(
        layers=layers,
        forward=layers.seconds(each * times.forward),
        backward=layers.seconds(each * times.backward_seconds),
        fixed=times.fixed_seconds + (overlap.hooks if isinstance(overlap, Overlapping) else 0.0),
        update=times.update,
        batch=workload.local_batch_size,
        world_size=world_size,
        gradient_nbytes=model.gradient_size / layers.parameters,
        input_nbytes=model.input_size,
        buckets=_buckets(scenario, times, world_size),
    )


def layers_of(scenario: Trains) -> LayerList:
    """The layers of a scenario's model. Under data parallelism a model that does not list them is
    one layer.

    Raises:
        ScenarioError: see `job_of`.
    """
    model, kind = scenario.workload.model, scenario.workload.parallelism.kind
    layers = model.layer_list
    if layers is not None:
        return layers
    if not isinstance(scenario.workload.parallelism, Data):
        rule = f"must list the layers, with their shapes, if training is divided as '{kind}'"
        remedy = (
            "Name a network that comes with simshuffle, such as resnet50, list its layers, or use"
            " workload.parallelism: data."
        )
        problem = Problem("workload.model.layers", rule, f"'{model.name}' without a list", remedy)
        raise ScenarioError(problem, scenario.name)
    return _one_layer(model)


def communicators_of(scenario: Trains, resources: Resources) -> Communicators:
    """The groups in which the ranks of ``resources`` communicate, as the scenario divides
    training."""
    parallelism = scenario.workload.parallelism
    return Communicators(
        scenario.workload.allreduce_on(scenario.cluster),
        resources,
        parallelism.group_size(resources.world_size),
        stream(scenario.seed, "host_order"),
        getattr(parallelism, "bus_bandwidth", None),
        getattr(parallelism, "step_latency", None),
    )


def _one_layer(model: ModelProfile) -> LayerList:
    values = (max(round(model.input_size / VALUE_NBYTES), 1),)
    parameters = model.num_parameters or max(round(model.gradient_size / VALUE_NBYTES), 1)
    layer = Layer(model.name, "other", (INPUT,), values, values, parameters, flops=1.0)
    return LayerList(model.name, (layer,), values)


def _buckets(scenario: Trains, times: StepTimes, world_size: int) -> Floats | None:
    """See `Job`: messages of a backward pass on one GPU alone."""
    overlap = scenario.workload.allreduce.overlap
    if isinstance(overlap, NoOverlap):
        return None
    batch = np.asarray(scenario.workload.local_batch_size)
    backward = float(times.backward_of(batch)) + overlap.hooks
    return overlap.messages(scenario.workload.model.gradient_arrival, backward, world_size)
