"""Runs whose steps are divided among groups of ranks: what an epoch adds up to."""

import numpy as np
import pytest

from simshuffle.errors import ScenarioError
from simshuffle.job.lowering.division import MAX_PIECES, communicators_of, job_of, split_joint_part
from simshuffle.job.lowering.step_transfers import step_seconds
from simshuffle.job.plan.resources import Resources
from simshuffle.job.sim.simulate import simulate
from simshuffle.report.timeline import HIDDEN
from simshuffle.spec.rng import lognormal_factor
from simshuffle.workload.parallelism import Node, Step
from tests.small import seconds, small

KINDS = (
    "spatial:ways=4",
    "filter:ways=4",
    "filter:ways=8",
    "channel:ways=2",
    "pipeline:stages=4,microbatches=5",
    "sharded_data:stage=1",
    "sharded_data:stage=2",
    "sharded_data:stage=3",
)
STEP = ("forward", "backward", "bubble", "group_communication", "allreduce", "update")


def divided_run(parallelism, **values):
    return small(workload__parallelism=parallelism, workload__allreduce__overlap="none", **values)


def in_step(timeline):
    """s of all of `STEP` of every rank, (M,)."""
    rows = timeline.phases[timeline.phases["phase"].isin(STEP)]
    return (rows["end_s"] - rows["start_s"]).groupby(rows["rank"]).sum().to_numpy()


@pytest.mark.parametrize("parallelism", KINDS)
def test_an_epoch_takes_its_waits_and_as_many_steps_as_it_has_iterations(parallelism):
    # so much that copying batches to GPUs takes nothing of it from what is sent
    scenario = divided_run(parallelism, cluster__host__pcie_bandwidth="10 TB/s")
    timeline = simulate(scenario)
    resources = Resources(scenario.cluster, 8, scenario.rng("placement"))
    step = scenario.workload.parallelism.step(job_of(scenario), max_pieces=MAX_PIECES)
    communicators = communicators_of(scenario, resources)
    parts = [part for part in split_joint_part(step) if part.nodes]
    alone = sum(step_seconds(part, communicators, scenario.network) for part in parts)
    np.testing.assert_allclose(in_step(timeline), 10 * alone, rtol=1e-9)
    closed = sum(part.costs(communicators.seconds).seconds for part in parts)
    if "pipeline" not in parallelism:  # in which one microbatch gets into the way of another
        assert closed == pytest.approx(alone, rel=1e-9)
    # groups that are through do not wait for others with what nobody else needs
    assert step.costs(communicators.seconds).seconds <= closed * (1 + 1e-9) <= alone * (1 + 1e-8)


@pytest.mark.parametrize("parallelism", KINDS)
def test_the_phases_of_a_rank_fill_the_epoch_without_a_gap(parallelism):
    timeline = simulate(divided_run(parallelism, workload__jitter={"compute": 0.1, "read": 0.1}))
    phases = timeline.phases[~timeline.phases["phase"].isin(HIDDEN)]
    end = phases["end_s"].max()
    for _, rows in phases.groupby("rank"):
        ordered = rows.sort_values(["start_s", "end_s"])
        starts, ends = ordered["start_s"].to_numpy(), ordered["end_s"].to_numpy()
        assert starts[0] == 0.0
        np.testing.assert_array_equal(starts[1:], ends[:-1])
        assert ends[-1] == end


def test_a_group_computes_as_long_as_its_slowest_member():
    scenario = divided_run(
        "filter:ways=4", workload__jitter={"compute": 0.3, "read": 0}, workload__model="resnet50"
    )
    forward = seconds(simulate(scenario), "forward")
    of_groups = [{forward[rank] for rank in ranks} for ranks in (range(4), range(4, 8))]
    assert [len({round(s, 12) for s in of}) for of in of_groups] == [1, 1]
    job = job_of(scenario)
    whole = scenario.workload.parallelism.step(job, max_pieces=16)
    each = sum(node.seconds for node in whole.nodes if node.label == "forward")
    jitter = lognormal_factor(scenario.rng("compute_jitter", 1), 0.3, (10, 8))
    for group, of in enumerate(of_groups):
        slowest = jitter[:, 4 * group : 4 * group + 4].max(axis=1).sum()
        assert of.pop() == pytest.approx(slowest * each, rel=1e-9)


def test_members_of_a_group_wait_for_the_one_that_reads_longest():
    """Ranks 0 to 3 and 4 to 7 are groups; nobody waits for the other group's batch before the
    passes."""
    timeline = simulate(divided_run("filter:ways=4", workload__jitter={"compute": 0, "read": 0.5}))
    rows = timeline.phases[timeline.phases["iteration"] == 1]
    begin = rows[rows["phase"] == "forward"].set_index("rank")["start_s"]
    loaded = rows[rows["phase"].isin(["io", "decode"])].groupby("rank")["end_s"].max()
    for ranks in (range(4), range(4, 8)):
        assert begin[list(ranks)].nunique() == 1
        assert begin[ranks[0]] == loaded[list(ranks)].max()
    assert begin[0] != begin[4]


def test_the_last_smaller_batch_takes_less():
    """84 samples a rank in batches of 10: the ninth has 4."""
    scenario = divided_run(
        "filter:ways=4", workload__dataset__num_samples=8 * 84, workload__last_batch="keep"
    )
    rows = simulate(scenario).phases
    rows = rows[(rows["phase"] == "forward") & (rows["rank"] == 0)]
    lasts = (rows["end_s"] - rows["start_s"]).to_numpy()
    times = scenario.workload.model.accelerators[scenario.cluster.host.accelerator]
    sizes = np.array([10, 4])
    expected = times.forward_of(sizes)
    assert lasts[-1] / lasts[0] == pytest.approx(expected[1] / expected[0], rel=1e-6)


@pytest.mark.parametrize("parallelism", KINDS)
def test_groups_without_samples_take_no_time_for_them(parallelism):
    """641 samples in batches of 10: a ninth iteration has one, of rank 0."""
    scenario = divided_run(
        parallelism, workload__dataset__num_samples=641, workload__last_batch="keep"
    )
    timeline = simulate(scenario)
    rows = timeline.phases[timeline.phases["phase"].isin(["forward", "backward"])]
    computed = (rows["end_s"] - rows["start_s"]).groupby([rows["iteration"], rows["rank"]]).sum()
    assert timeline.phases["iteration"].max() == 9
    ways = scenario.workload.parallelism.group_size(8)
    if ways < 8 and ways > 1:
        assert computed.get((9, 7), 0.0) < 0.5 * computed[8, 7]


def test_stages_update_their_own_weights():
    """The largest stage has less than all, and each as long as its part of the weights."""
    scenario = divided_run("pipeline:stages=4,microbatches=5")
    times = scenario.workload.model.accelerators[scenario.cluster.host.accelerator]
    job, whole = job_of(scenario), times.update
    step = scenario.workload.parallelism.step(job, max_pieces=MAX_PIECES)
    each = [node.seconds for node in step.nodes if node.label == "update"]
    assert sum(each) == pytest.approx(whole, rel=1e-9)
    spent = seconds(simulate(scenario), "update")
    assert spent[0] == pytest.approx(10 * max(each), rel=1e-9)


def test_a_step_is_divided_where_several_groups_meet():
    nodes = [
        Node("input", collective="allgather", nbytes=1.0),
        Node("forward", (0,), 1.0),
        Node("backward", (1,), 2.0),
        Node("gradients", (1,), collective="allreduce", group="data", nbytes=8.0),
        Node("update", (2, 3), 0.5),
    ]
    local, joint = split_joint_part(Step(nodes))
    assert [node.label for node in local.nodes] == ["input", "forward", "backward"]
    assert [node.label for node in joint.nodes] == ["gradients", "update"]
    assert [node.predecessors for node in joint.nodes] == [(), (0,)]


def test_groups_read_what_they_train_on():
    with pytest.raises(ScenarioError, match="what the ranks of a group read"):
        simulate(divided_run("filter:ways=4,group_batch=8"))


def test_gradients_cannot_travel_beside_divided_passes():
    with pytest.raises(ScenarioError, match="must be none where training is divided by filter"):
        small(workload__parallelism="filter:ways=4", workload__allreduce__overlap="ddp")
