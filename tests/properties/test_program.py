"""The program of an exchange: the bytes and seconds of the transfers that the simulator posts."""

import numpy as np
import pytest

from simshuffle.errors import InputError
from simshuffle.extensions.interop.exports.program import make_program
from simshuffle.job.lowering.messages import (
    MessageLowering,
    StoreLowering,
    exchange_costs,
    messages_of,
)
from simshuffle.job.plan.epochs import plan_epochs, sample_nbytes
from simshuffle.job.plan.resources import Resources
from tests.scenarios import random_scenario
from tests.small import small

PARTIAL = "partial_local_shuffle:exchange_fraction={}"


def exchanging(count):
    """Random scenarios that exchange something in their first epoch, and the iteration."""
    found, number = [], 0
    while len(found) < count:
        scenario = random_scenario(number, extreme=number % 3 == 0)
        number += 1
        try:
            found.append((scenario, make_program(scenario, 1).iteration))
        except InputError:
            continue
    return found


@pytest.fixture(scope="module", params=range(12))
def case(request, scenarios):
    return scenarios[request.param]


@pytest.fixture(scope="module")
def scenarios():
    out = []
    for scenario, iteration in exchanging(12):
        nbytes = sample_nbytes(scenario)
        plan = next(plan_epochs(scenario, nbytes))
        schedule = scenario.workload.exchange.exchange_schedule
        costs = exchange_costs(
            plan.exchange,
            schedule,
            scenario.workload.dataset,
            nbytes=nbytes,
            cached=plan.sent_from_cache,
            iterations=plan.iterations,
        )
        out.append((scenario, iteration, costs, schedule))
    return out


def test_bytes_are_those_of_the_costs_and_each_receipt_has_its_sender(case):
    scenario, iteration, costs, _ = case
    exchange = make_program(scenario, 1, iteration)
    ranks = np.arange(scenario.world_size)
    sent = sum(step.nbytes for step in exchange.steps)
    assert sent == pytest.approx(costs.sent[iteration - 1], rel=1e-12)
    for step in exchange.steps:
        assert sorted(step.target) == ranks.tolist()
        np.testing.assert_array_equal(step.target[step.source], ranks)
        np.testing.assert_array_equal(step.sends, step.source != ranks)
        assert not step.nbytes[~step.sends].any()
        assert (step.route[~step.sends] == -1).all()
        assert (step.route[step.sends][:, 0] >= 0).all()
    assert len(exchange.steps) == len(
        np.unique(costs.plan.message[costs.plan.iteration == iteration - 1])
    )


def test_seconds_are_those_of_the_transfers_alone(case):
    """Of every rank those of its reads and its work; of every message its delay; of the storing."""
    scenario, iteration, costs, schedule = case
    exchange = make_program(scenario, 1, iteration)
    resources = Resources(scenario.cluster, scenario.world_size, scenario.rng("placement"))
    messages = messages_of(
        costs, iteration - 1, resources, scenario.workload.loader.reads_in_flight
    )
    zeros = np.zeros(scenario.world_size, int)
    batch = MessageLowering(resources, schedule, serial_pairs=True).graph(messages, zeros, zeros)
    tasks, routes = batch.batch.tasks, batch.batch.routes
    capacity = np.append(resources.links.capacity, np.inf)  # of no link
    alone = tasks["delay"] + tasks["work"] / capacity[routes[:, 0]]
    own = tasks["account"] >= 0
    working = np.bincount(tasks["account"][own], alone[own], scenario.world_size)
    assert sum(step.before_s for step in exchange.steps) == pytest.approx(working, rel=1e-9)
    wires = tasks["pair"] >= 0
    delays = np.concatenate([step.latency_s[step.sends] for step in exchange.steps])
    assert delays == pytest.approx(tasks["delay"][wires])
    links = np.concatenate([step.route[step.sends] for step in exchange.steps])
    np.testing.assert_array_equal(links, routes[wires])
    barriers = np.count_nonzero(batch.rank < 0)
    assert barriers == sum(exchange.barrier_before)
    stores = StoreLowering(resources, costs, in_memory=scenario.workload.source == "memory")
    store = stores.batch(iteration - 1, 0)
    seconds = store.tasks["delay"] + store.tasks["work"] / capacity[store.routes[:, 0]]
    assert exchange.store_s == pytest.approx(seconds.reshape(-1, 2).sum(axis=1))


def test_what_has_no_messages_is_refused_with_a_remedy():
    with pytest.raises(InputError, match="local_shuffle exchanges nothing"):
        make_program(small(), 1, 1)
    few = small(workload__exchange=PARTIAL.format(0.02))
    assert make_program(few, 1).iteration == 5
    with pytest.raises(InputError, match="The nearest such iteration is 5"):
        make_program(few, 1, 2)
    with pytest.raises(InputError, match="nothing is sent in epoch 1"):
        make_program(small(world_size=1, workload__exchange=PARTIAL.format(0.02)), 1, 1)
