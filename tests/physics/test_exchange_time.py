"""The time of the exchange, worked out by hand: 8 hosts on one switch of 10 GB/s, no randomness in
sizes or compute.

How it is carried out: Nguyen et al., IPDPS 2022, and the scheduler in
github.com/TruongThaoNguyen/kakurenbo (6cb9f88).
"""

import math

import numpy as np
import pytest

from simshuffle.job.sim.simulate import simulate
from simshuffle.report import report
from tests.small import seconds, small

BARRIER = math.ceil(math.log2(8)) * 1.3e-6
READ = 80e-6 + 100e3 / 3e9  # latency and transfer of one file from the SSD
HOST = 30e-6 + 60e-6 + 1e-3 + 90e-6  # open, zero the buffer, decode, pickle one sample
DRAW = 8 * 15e-9
WRITE = 0.5e-3 + 100e3 / 1e9  # re-encode one sample and write it
WIRE = 1.3e-6 + 500e3 / 10e9  # one decoded sample, alone on its way
REMOVE = 20e-6


def partial(fraction=0.2, **schedule):
    """Every rank has 100 samples in 10 iterations: Q = 0.2 is 2 samples an iteration."""
    costs = {
        "barriers": "message",
        "payload": "decoded",
        "read": "30 us",
        "zero_buffer": "60 us",
        "pickle": "90 us",
        "draw": "15 ns",
        "remove": "20 us",
    }
    exchange = {
        "kind": "partial_local_shuffle",
        "exchange_fraction": fraction,
        "schedule": costs | schedule,
    }
    return small(workload__exchange=exchange)


def moving_ranks(scenario):
    """For every step of the first epoch, which ranks send (True) or keep their sample."""
    from simshuffle.job.plan.epochs import plan_epochs, sample_nbytes

    return next(plan_epochs(scenario, sample_nbytes(scenario))).exchange.moving


def test_host_work_and_barriers_of_one_sample_an_iteration():
    """Each iteration: barrier, then read + decode + pickle. Ranks that keep their sample draw the
    permutation and wait for nobody."""
    scenario = partial(0.1)
    timeline = simulate(scenario)
    moving = moving_ranks(scenario)
    rows = timeline.phases
    for iteration in range(1, 10):
        part = rows[
            (rows["iteration"] == iteration) & rows["phase"].isin(["exchange", "wait_exchange"])
        ]
        after_update = part[
            part["start_s"]
            >= rows.loc[
                (rows["iteration"] == iteration) & (rows["phase"] == "update"), "end_s"
            ].max()
        ]
        took = after_update.groupby("rank").apply(lambda g: (g["end_s"] - g["start_s"]).sum())
        expected = np.where(moving[iteration - 1], BARRIER + DRAW + READ + HOST, BARRIER + DRAW)
        assert took.to_numpy() == pytest.approx(expected, rel=1e-6)


def test_received_samples_are_stored_after_backward_and_all_meet():
    scenario = partial(0.1)
    timeline = simulate(scenario)
    rows = timeline.phases
    backward = rows[(rows["iteration"] == 2) & (rows["phase"] == "backward")].set_index("rank")[
        "end_s"
    ]
    reduce = rows[(rows["iteration"] == 2) & (rows["phase"] == "allreduce")].set_index("rank")[
        "start_s"
    ]
    # compute is the same for all, but ranks that kept their sample began earlier; the last one
    # decides
    assert (reduce - backward.max()).to_numpy() == pytest.approx(WRITE + BARRIER, rel=1e-6)


def test_the_wire_is_hidden_and_counted():
    """A message takes 51 us beside the next forward pass: hidden, and part of the total. Only the
    last one has nothing to hide behind.

    In a permutation every rank that sends also receives, at the same time here, since all have the
    same host work.
    """
    table = report.epochs(simulate(partial(0.1)))
    hidden = (table["exchange_total_s"] - table["exchange_exposed_s"]).item()
    messages = moving_ranks(partial(0.1))[:9].sum() / 8
    assert messages > 6
    assert hidden == pytest.approx(messages * WIRE, rel=1e-6)


def test_without_overlap_nothing_is_hidden():
    overlapped, waited = (
        report.epochs(simulate(partial(0.2, overlap=overlap))).iloc[0] for overlap in (True, False)
    )
    assert waited["exchange_total_s"] == waited["exchange_exposed_s"]
    assert waited["exchange_exposed_s"] > overlapped["exchange_exposed_s"]
    assert waited["epoch_s"] - overlapped["epoch_s"] == pytest.approx(9 * WIRE, rel=0.35)


def test_one_message_an_iteration_saves_barriers_and_nothing_else():
    """Two samples in one message of 'iteration' lifetime: one barrier and one permutation less an
    iteration; the same host work."""
    two = simulate(partial(0.2, partner_lifetime="iteration"))
    one = simulate(partial(0.2, partner_lifetime="iteration", samples_per_message="iteration"))
    assert two.sources["nbytes_peer"].item() == one.sources["nbytes_peer"].item()
    saved = [sum(seconds(t, "wait_exchange").values()) / 8 for t in (two, one)]
    assert saved[0] - saved[1] >= 10 * BARRIER * (1 - 1e-6)
    barriers = simulate(partial(0.2, partner_lifetime="iteration", barriers="iteration"))
    last = report.epochs(barriers)["epoch_s"].item(), report.epochs(two)["epoch_s"].item()
    assert last[1] - last[0] == pytest.approx(10 * BARRIER, rel=1e-6)


def test_no_barriers_no_waiting_for_others():
    timeline = simulate(partial(0.2, barriers="none"))
    assert seconds(timeline, "wait_exchange") == {}
    assert (
        timeline.sources["samples_moved"].item()
        == simulate(partial(0.2)).sources["samples_moved"].item()
    )


@pytest.mark.parametrize("overlap", ["none", "ddp"])
def test_ranks_that_go_on_together_begin_to_send_together(overlap):
    """Without barriers: all ranks have their gradients at the same instant, and read at once."""
    exchange = {
        "kind": "partial_local_shuffle",
        "exchange_fraction": 0.2,
        "schedule": {"barriers": "none"},
    }
    timeline = simulate(small(workload__exchange=exchange, workload__allreduce__overlap=overlap))
    phases = timeline.phases
    updated = phases[phases["phase"] == "update"].groupby("iteration")["end_s"]
    assert (updated.nunique() == 1).all() and (updated.size() == 8).all()
    sending = phases[(phases["phase"] == "exchange") & (phases["iteration"] > 0)]
    began = sending.merge(updated.first().rename("updated_s"), on="iteration")
    assert (began["start_s"] == began["updated_s"]).sum() == 8 * 10


def test_encoded_payload_is_neither_decoded_nor_encoded():
    plain, encoded = simulate(partial(0.1)), simulate(partial(0.1, payload="encoded"))
    assert encoded.sources["nbytes_peer"].item() == pytest.approx(
        plain.sources["nbytes_peer"].item() / 5
    )
    shorter = [report.epochs(t)["epoch_s"].item() for t in (plain, encoded)]
    # every iteration some rank moves its sample: 1 ms of decoding less in each, and 0.5 ms of
    # encoding at each receipt
    assert shorter[0] - shorter[1] == pytest.approx(10 * (1e-3 + 0.5e-3), rel=0.05)


def test_removal_at_the_end_of_the_epoch():
    with_cost, without = simulate(partial(0.2)), simulate(partial(0.2, remove="0 s"))
    took = [report.epochs(t)["epoch_s"].item() for t in (with_cost, without)]
    most = moving_ranks(partial(0.2)).sum(axis=0).max()
    assert took[0] - took[1] == pytest.approx(most * REMOVE, rel=1e-6)


def test_barriers_amplify_uneven_samples():
    """With uneven sizes every barrier waits for the largest sample of all ranks: E[max] grows with
    the ranks, the mean does not."""
    waits = []
    for ranks in (2, 16):
        values = {
            "workload__dataset__sample_size__std": "90 kB",
            "workload__exchange": "partial_local_shuffle:exchange_fraction=0.2,schedule=authors",
        }
        timeline = simulate(
            small(world_size=ranks, workload__dataset__num_samples=100 * ranks, **values)
        )
        waits.append(sum(seconds(timeline, "wait_exchange").values()) / ranks)
    assert waits[1] > 1.5 * waits[0]


def test_partial_with_q_zero_is_local():
    local = simulate(small())
    zero = simulate(partial(0.0))
    assert report.epochs(zero)["epoch_s"].item() == report.epochs(local)["epoch_s"].item()


def test_q_one_moves_every_sample_but_fixed_points():
    timeline = simulate(partial(1.0))
    moved = timeline.sources["samples_moved"].item()
    assert moved == moving_ranks(partial(1.0)).sum()
    assert 0.8 * 800 < moved < 800


def test_the_fair_share_entity_is_a_parameter_of_the_run():
    """Two samples an iteration to one partner over slow, tapered links: by pair the second waits
    for the first, by message they share.

    The host sends them 1.3 ms apart and a message takes 50 ms or more, so that both are in flight
    together; what differs is how much of an uplink a pair gets beside another one.
    """
    tree = {
        "kind": "fat_tree",
        "levels": 2,
        "arity": 4,
        "taper": 4,
        "link_bandwidth": "10 MB/s",
        "cable_latency": "0 s",
    }
    exchange = {
        "kind": "partial_local_shuffle",
        "exchange_fraction": 0.2,
        "schedule": "authors:partner_lifetime=iteration",
    }
    tables = []
    for entity in ("pair", "message"):
        topology = tree | {"switch_latency": "0 s"}
        scenario = small(
            cluster__topology=topology,
            workload__exchange=exchange,
            workload__model__gradient_size="1 kB",
            workload__dataset__sample_size__std="90 kB",
            network__fair_share=entity,
        )
        tables.append(report.epochs(simulate(scenario)).iloc[0])
    assert tables[0]["nbytes_peer"] == tables[1]["nbytes_peer"]
    assert tables[0]["epoch_s"] != pytest.approx(tables[1]["epoch_s"], rel=1e-6)


def test_a_lone_rank_meets_nobody():
    timeline = simulate(
        small(
            world_size=1,
            workload__dataset__num_samples=100,
            workload__exchange="partial_local_shuffle:exchange_fraction=0.2,schedule=authors",
        )
    )
    assert seconds(timeline, "wait_exchange") == {}
    assert timeline.sources["samples_moved"].item() == 0


def test_barriers_are_waiting_and_no_work():
    """A rank works as long as without them, since messages are there before they are asked for."""
    free, met = (simulate(partial(0.1, barriers=barriers)) for barriers in ("none", "message"))
    work = seconds(free, "exchange")
    assert seconds(met, "exchange") == pytest.approx(work, rel=1e-6)
    # one before the messages of each iteration, and one after they were stored
    assert min(seconds(met, "wait_exchange").values()) >= 10 * 2 * BARRIER * (1 - 1e-9)
    assert max(seconds(free, "wait_exchange").values(), default=0.0) < BARRIER
