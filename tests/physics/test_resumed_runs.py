"""A run that loses hosts, whose loader goes on with its saved state: what epochs then see and read.

A state is saved after every second iteration; 8 ranks of 10 samples, 10 iterations of 800 samples.
"""

import pytest

from simshuffle.errors import InputError
from simshuffle.job.plan.recovery import mean_interruption
from simshuffle.job.sim.simulate import simulate
from simshuffle.workload.resuming.samplers import StatefulDataLoader
from tests.physics.test_recovery import AWAY, SAVING, lengths, middle, run
from tests.small import small

ORDER = {"kind": "distributed_sampler"}
AGAIN = {"kind": "restart", "of": ORDER}
OF_LOADER = {
    "workload__exchange": {"kind": "loader_shuffle", "order": ORDER},
    "workload__last_batch": "keep",
}


def broken(at, resume=AGAIN, policy="elastic", **values):
    return run(at, recovery={**AWAY, "policy": policy, "resume": resume}, **OF_LOADER, **values)[1]


def seen(timeline):
    return [(each["seen"], each["twice"]) for each in timeline.facts["completeness"]]


@pytest.fixture(scope="module")
def healthy():
    return run(**OF_LOADER)[1]


def test_an_epoch_that_begins_again_sees_twice_what_it_had(healthy):
    timeline = broken(middle(healthy)[0])
    # 4 iterations were saved and one more was done, 80 samples each; then all 800, dealt to 7 ranks
    # as 7 x 115; the next epoch has those 5 twice, too
    assert seen(timeline) == [(1, 0), (1, (4 * 80 + 80 + 805 - 800) / 800), (1, 5 / 800)]
    rows = timeline.sources.set_index("epoch")
    assert rows["iterations"].tolist() == [10, 4 + 12, 12]
    assert rows.loc[3, "world_size"] == 7
    # its caches are cold: all it trains on is read again but the 5, which their hosts may have
    assert 800 <= rows.loc[2, "read_requests"] - (4 + 1) * 80 <= 805 + 8 * 60


def test_a_spare_host_does_not_help_such_a_loader(healthy):
    timeline = broken(middle(healthy)[0], policy="spare")
    assert seen(timeline) == [(1, 0), (1, (4 * 80 + 80) / 800), (1, 0)]
    without = run(middle(healthy)[0], recovery={**AWAY, "policy": "spare"}, **OF_LOADER)[1]
    assert seen(without)[1] == (1, 80 / 800)
    step = (lengths(healthy)[1]) / 10
    assert lengths(timeline)[1] - lengths(without)[1] == pytest.approx(4 * step, rel=0.05)


def test_a_state_of_the_end_of_an_epoch_loses_nothing(healthy):
    # no state in the second epoch yet: it begins with other ranks
    first = lengths(healthy)[0]
    timeline = broken(first + 0.3 * lengths(healthy)[1] / 10)
    assert [each for each, _ in seen(timeline)] == [1, 1, 1]
    assert seen(timeline)[1][1] == 5 / 800


def two(*moments):
    """The timeline of 3 epochs, in which a host is lost at each of two moments (s)."""
    faults = [
        {"what": host, "at": f"{at} s", "rate": 0}
        for host, at in zip(("h0000", "h0001"), moments, strict=True)
    ]
    recovery = {**AWAY, "policy": "elastic", "resume": AGAIN}
    values = {"epochs": 3, "workload__checkpoint": SAVING, **OF_LOADER}
    return simulate(small(faults=faults, recovery=recovery, **values))


def test_two_losses_of_the_same_state_are_as_one(healthy):
    at, _ = middle(healthy)
    timeline = two(at, at + 3.2)
    assert [loss["ranks"] for loss in timeline.facts["losses"]] == [7, 6]
    # 134 samples of each of 6 ranks; what the 7 ranks did of the epoch was done for nothing
    again = timeline.facts["losses"][1]["redone_samples"]
    assert seen(timeline)[1] == (1, pytest.approx((4 * 80 + 80 + again + 804 - 800) / 800))


def test_a_loss_in_the_restart_of_a_loader_has_it_resumed_by_those_that_are_left(healthy):
    """The second host is lost 0.5 s into the restart, when nothing had been read on: 134 samples
    of each of 6 ranks."""
    timeline = two(middle(healthy)[0], middle(healthy)[0] + 1.5)
    assert [loss["ranks"] for loss in timeline.facts["losses"]] == [6, 6]
    assert seen(timeline)[1] == (1, pytest.approx((4 * 80 + 80 + 804 - 800) / 800))
    assert timeline.sources["world_size"].tolist() == [8, 8, 6]


def test_a_second_state_in_an_epoch_that_went_on_is_refused(healthy):
    at, _ = middle(healthy)
    end = sum(lengths(broken(at))[:2])
    with pytest.raises(InputError, match="follows one resumption in an epoch"):
        two(at, end - 0.05)


def test_a_law_of_another_order_is_refused(healthy):
    other = {"kind": "restart", "of": {**ORDER, "drop_last": True}}
    with pytest.raises(InputError, match="must resume the order"):
        broken(0.1, resume=other)
    with pytest.raises(InputError, match="must be left out where no loader's order"):
        run(0.1, recovery={**AWAY, "resume": AGAIN})


@pytest.mark.parametrize(("policy", "more"), [("spare", 0), ("elastic", 5)])
def test_an_interruption_of_a_loader_without_state_repeats_half_an_epoch(policy, more):
    recovery = {**AWAY, "policy": policy, "resume": AGAIN}
    found = mean_interruption(small(recovery=recovery, **OF_LOADER))
    # 0.6, 1.9, 3.1, ... of 10 iterations are cut off; all that they had comes again, and of the
    # padding of 7 ranks what had come before
    mean = sum(80 * step for step in (1, 3, 4, 5, 6, 8, 9)) / 7
    assert mean / 800 <= found.repeated <= (mean + more) / 800
    if more:  # 7 ranks fill up 5 rows, about half of which had come; 9 would fill up one
        assert found.repeated > (mean + 1) / 800
    assert (found.lost, found.refused) == (0, 0)


@pytest.mark.parametrize(
    ("policy", "gpus", "nodes"),
    [("elastic", 2, 3), ("elastic", 4, 1), ("elastic", 8, 1), ("spare", 2, 4)],
)
def test_an_elastic_job_goes_on_with_a_host_less_in_the_epoch_that_broke(
    monkeypatch, policy, gpus, nodes
):
    """The loader skips what was done of the second epoch: with as many ranks nothing is repeated or
    lost."""
    crashes = []
    resume = StatefulDataLoader.resume

    def recorded(self, data, crash, seed):
        crashes.append(crash)
        return resume(self, data, crash, seed)

    monkeypatch.setattr(StatefulDataLoader, "resume", recorded)
    found = mean_interruption(
        small(
            recovery={**AWAY, "policy": policy, "resume": {"kind": "stateful_dataloader"}},
            cluster__host__gpus=gpus,
            **OF_LOADER,
        )
    )
    assert {(crash.readers_after.nodes, crash.readers_after.ranks) for crash in crashes} == {
        (nodes, gpus)
    }
    assert {crash.readers_before.nodes for crash in crashes} == {8 // gpus}
    if nodes * gpus == 8:
        assert (found.repeated, found.lost, found.refused) == (0, 0, 0)
