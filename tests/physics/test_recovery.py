"""A host that is lost in the middle of an epoch: what is done again, read again, and missing.

Ranks are alike and nothing is random, so that every second can be worked out by hand:

    length with a loss = length without + what was done since the last checkpoint
                         + detection + waiting for hosts
                         + restart + reading the checkpoint + reading the samples again
                         + the first batch, for which loaders begin anew.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simshuffle.errors import InputError
from simshuffle.extensions.planning.month.hosts import RestartPolicy, follow_job
from simshuffle.job.plan.checkpoint_bounds import restore_seconds
from simshuffle.job.plan.epochs import plan_epochs, sample_nbytes
from simshuffle.job.plan.recovery import clear_caches, divide_among, drop_iterations
from simshuffle.job.reliability.faults import Faults
from simshuffle.job.sim.losses import Loss
from simshuffle.job.sim.recorder import Recorder
from simshuffle.job.sim.simulate import simulate, simulate_epochs
from simshuffle.report import report
from simshuffle.report.timeline import EXCLUSIVE
from simshuffle.studies.simulation.mishaps import ABSENCE_PHASES
from tests.small import seconds, small, uneven

SAVING = {"every": 2, "layout": "deduplicated", "state": "80 MB"}
AWAY = {"detect": "1 s", "restart": "2 s"}
LOCAL = "local_shuffle"
PARTIAL = "partial_local_shuffle:exchange_fraction=0.3"
RANKS, SAMPLES, BATCH, ITERATIONS = 8, 800, 10, 10  # of `small`


def run(at: float | None = None, what: str = "h0000", recovery=AWAY, **values):
    """The timeline of 3 epochs, in which a host is lost at ``at`` (s)."""
    values = {"epochs": 3, "workload__checkpoint": SAVING, **values}
    if at is not None:
        fault = {"what": what, "at": f"{at} s", "rate": 0}
        values |= {"faults": [fault], "recovery": {"spares": 1, **recovery}}
    scenario = small(**values)
    return scenario, simulate(scenario)


def lengths(timeline) -> list[float]:
    return report.epochs(timeline)["epoch_s"].tolist()


def middle(timeline, epoch: int = 2, iteration: int = 6) -> tuple[float, float]:
    """A moment in the middle of an iteration's forward pass, and the end of the last save before,
    which is after the iteration with the even number below (s)."""
    rows = timeline.phases[timeline.phases["epoch"] == epoch]
    of = rows[(rows["iteration"] == iteration) & (rows["phase"] == "forward")]
    last = (iteration - 1) // 2 * 2
    saved = rows[(rows["iteration"] == last) & (rows["phase"] == "checkpoint")]
    return float((of["start_s"].min() + of["end_s"].max()) / 2), float(saved["end_s"].max())


def test_a_spare_host_goes_on_from_the_last_checkpoint():
    _, healthy = run()
    at, saved = middle(healthy)
    scenario, timeline = run(at)
    loss = timeline.facts["losses"][0]
    assert loss["redone_s"] == pytest.approx(at - saved, rel=1e-9)
    assert loss["redone_samples"] == RANKS * BATCH  # iteration 5; 6 was not done
    assert loss["restore_s"] == pytest.approx(restore_seconds(scenario), rel=1e-9)
    # the shard of a rank, 100 samples of 100 kB, over the SSD's 1 GB/s
    assert loss["reread_nbytes"] == pytest.approx(SAMPLES / RANKS * 100e3)
    assert loss["reread_s"] == pytest.approx(0.01, rel=1e-3)
    refill = float(np.mean(list(seconds(healthy, "io", 2).values())))
    refill += float(np.mean(list(seconds(healthy, "decode", 2).values())))
    away = 1.0 + 2.0 + loss["restore_s"] + loss["reread_s"]
    expected = lengths(healthy)[1] + at - saved + away + refill
    assert lengths(timeline)[1] == pytest.approx(expected, rel=1e-6)
    assert lengths(timeline)[0] == pytest.approx(lengths(healthy)[0], rel=1e-12)
    assert lengths(timeline)[2] == pytest.approx(lengths(healthy)[2], rel=1e-9)
    whole = {"epoch": 2, "planned": 1.0, "seen": 1.0, "twice": 0.1}
    assert timeline.facts["completeness"][1] == whole


def test_a_watchdog_counts_the_iterations_before_a_loss_too():
    """The job goes on after the 4th of epoch 2. After the 6th it saves again, and one host, whose
    cores now do a thousandth, serialises 10 MB for longer than the others wait."""
    saving = {**SAVING, "serialise": "1 GB/s", "watchdog": "500 ms"}
    values = {"workload__checkpoint": saving, "workload__dataset__decode": "0 s"}
    _, healthy = run(**values)
    at, _ = middle(healthy)
    slow = {"what": "h0003.cores", "rate": 1e-3, "at": f"{at + 0.1} s"}
    lost = {"what": "h0000", "at": f"{at} s", "rate": 0}
    scenario = small(epochs=3, faults=[lost, slow], recovery={"spares": 1, **AWAY}, **values)
    timeline = simulate(scenario)
    killed = timeline.facts["killed"][0]
    assert (killed["epoch"], killed["iteration"]) == (2, 6)
    assert (killed["rank"], killed["writing"]) == (3, 1)
    assert timeline.sources["iterations"].tolist() == [10, 6]
    saves = timeline.phases[timeline.phases["phase"] == "checkpoint"]
    assert sorted(set(saves[saves["epoch"] == 2]["iteration"])) == [2, 4, 6]
    last = saves[(saves["epoch"] == 2) & (saves["iteration"] == 6)]
    assert (last["end_s"] == killed["at_s"]).all()


def assert_no_gap(timeline) -> None:
    """Check that the phases of each rank follow one another, and that all end together."""
    rows = timeline.phases[timeline.phases["phase"].isin(EXCLUSIVE)]
    for _, rows_of_rank in rows.groupby(["epoch", "rank"]):
        in_order = rows_of_rank.sort_values("start_s")
        np.testing.assert_allclose(in_order["start_s"][1:], in_order["end_s"][:-1], atol=1e-9)
    assert rows[rows["epoch"] == 2].groupby("rank")["end_s"].max().nunique() == 1


def test_phases_follow_one_another_without_a_gap():
    _, healthy = run()
    for recovery in (AWAY, {**AWAY, "policy": "elastic", "reread": False}):
        _, timeline = run(middle(healthy)[0], recovery=recovery)
        assert_no_gap(timeline)


def test_without_a_checkpoint_all_is_done_again():
    _, healthy = run(workload__checkpoint=None)
    first, second, _ = lengths(healthy)
    at = first + 0.5 * second
    _, timeline = run(at, workload__checkpoint=None)
    lost = np.mean(list(seconds(timeline, "lost", 2).values()))
    # half of the second epoch, and the first one once more
    assert lost == pytest.approx(0.5 * second + first, rel=1e-6)
    assert np.mean(list(seconds(timeline, "restart", 2).values())) == pytest.approx(3.01, rel=1e-4)
    assert timeline.facts["losses"][0]["restore_s"] == 0


def test_a_host_that_the_job_does_not_have_changes_nothing():
    _, healthy = run()
    _, timeline = run(0.1, what="h0015")
    columns = ["epoch", "iteration", "rank", "phase", "start_s", "end_s", "nbytes"]
    order = ["epoch", "iteration", "rank", "start_s", "end_s", "phase"]
    ours, theirs = (
        of.phases[columns].sort_values(order).reset_index(drop=True) for of in (timeline, healthy)
    )
    np.testing.assert_array_equal(ours.to_numpy(), theirs.to_numpy())
    numbers = healthy.sources.select_dtypes("number").columns
    assert timeline.sources[numbers].equals(healthy.sources[numbers])
    assert "losses" not in timeline.facts or not timeline.facts["losses"]


def test_under_local_shuffle_the_shard_of_a_lost_host_is_gone():
    _, healthy = run()
    at, _ = middle(healthy)
    _, timeline = run(at, recovery={**AWAY, "policy": "elastic", "reread": False})
    seen = [each["seen"] for each in timeline.facts["completeness"]]
    # 4 of 10 iterations by 8 ranks, 6 by 7; then 7 of 8 shards
    assert seen == pytest.approx([1.0, (4 * 8 + 6 * 7) / 80, 7 / 8])
    assert report.epochs(timeline)["world_size"].tolist() == [8, 8, 7]


def test_under_partial_exchange_what_was_sent_is_elsewhere():
    values = {"workload__exchange": PARTIAL, "workload__last_batch": "keep"}
    _, healthy = run(**values)
    at, _ = middle(healthy)
    elastic = {**AWAY, "policy": "elastic", "reread": False}
    scenario, timeline = run(at, recovery=elastic, **values)
    plans = plan_epochs(scenario, sample_nbytes(scenario))
    _, second = next(plans), next(plans)
    sent = int(second.exchange.moving[second.exchange.iteration < 5][:, 0].sum())
    assert sent >= 10
    seen = [each["seen"] for each in timeline.facts["completeness"]]
    assert seen[1] == pytest.approx((4 * 8 + 6 * 7) / 80)
    # of its shard of 100; what it had received its senders still have
    assert seen[2] == pytest.approx((SAMPLES - 100 + sent) / SAMPLES)


def test_what_is_on_the_file_system_is_not_lost():
    exchange = "global_shuffle:source=pfs"
    _, healthy = run(workload__exchange=exchange)
    at, _ = middle(healthy)
    elastic = {**AWAY, "policy": "elastic", "reread": False}
    _, timeline = run(at, workload__exchange=exchange, recovery=elastic)
    assert timeline.facts["completeness"][1]["seen"] == 1.0
    assert timeline.facts["losses"][0]["reread_nbytes"] == 0


def test_an_elastic_restart_reads_the_shard_of_the_lost_host_again():
    _, healthy = run()
    _, timeline = run(middle(healthy)[0], recovery={**AWAY, "policy": "elastic"})
    loss, seen = timeline.facts["losses"][0], timeline.facts["completeness"][1]["seen"]
    assert loss["reread_nbytes"] == pytest.approx(SAMPLES / RANKS * 100e3)
    assert seen == 1.0
    # each of 7 ranks reads a seventh of it, in parallel
    assert loss["reread_s"] == pytest.approx(0.01 / 7, rel=1e-2)


def test_ranks_that_go_on_read_the_bytes_of_those_that_are_lost():
    """Samples are of other sizes: each that is left reads its own, and an even part of the rest."""
    scenario = uneven(workload__last_batch="keep")
    *_, plan = plan_epochs(scenario, sample_nbytes(scenario))
    left = np.array([True, True, False, True, False, True])
    before = plan.training
    after = divide_among(plan, left, 10, dealt=True).training
    for name in ("samples", "nbytes"):
        own, all_of_it = getattr(before, name)[:, left], getattr(before, name).sum()
        np.testing.assert_array_equal(getattr(after, name)[: len(own)], own)
        assert getattr(after, name).sum() == pytest.approx(all_of_it)
    dealt = after.samples[len(before.samples) :]
    assert dealt.sum(axis=0).max() - dealt.sum(axis=0).min() <= 1
    worked = replace(plan, training=replace(before, work=before.nbytes))
    np.testing.assert_array_equal(drop_iterations(worked, 1).training.work, before.nbytes[1:])
    assert after.hit_nbytes.sum() == before.hit_nbytes[:, left].sum() > 0
    alone = divide_among(plan, left, 10, dealt=False).training
    np.testing.assert_array_equal(alone.nbytes, before.nbytes[:, left])


@pytest.mark.parametrize("policy", ["spare", "elastic"])
def test_importance_is_measured_by_the_ranks_that_go_on_and_on_new_hosts_from_cold_caches(policy):
    exchange = {"kind": "importance_pair", "exchange_fraction": 0.2, "lagging": False}
    scenario = small(workload__exchange=exchange, epochs=2, cluster__memory__page_cache="1 GB")
    *_, plan = plan_epochs(scenario, sample_nbytes(scenario))
    lost = np.arange(RANKS) == 3
    before = plan.inference
    assert before.hit_samples.all()
    if policy == "spare":
        after = clear_caches(plan, lost).inference
        assert not after.hit_samples[:, lost].any()
        assert not after.hit_nbytes[:, lost].any()
        np.testing.assert_array_equal(after.hit_samples[:, ~lost], before.hit_samples[:, ~lost])
        np.testing.assert_array_equal(after.nbytes, before.nbytes)
    else:
        after = divide_among(plan, ~lost, BATCH, dealt=True).inference
        np.testing.assert_array_equal(after.nbytes, before.nbytes[:, ~lost])
    _, timeline = run(
        0.01 + lengths(simulate(scenario))[0],
        workload__exchange=exchange,
        recovery={**AWAY, "policy": policy},
        epochs=2,
    )
    assert len(timeline.facts["losses"]) == 1


@pytest.mark.parametrize("every", [1, 2, 9])
@pytest.mark.parametrize("policy", ["spare", "elastic"])
def test_bytes_samples_and_iterations_add_up_however_often_hosts_are_lost(policy, every):
    """Two hosts in one epoch, the second before the stretch after the first has ended, and one in
    the next epoch, of ranks, shards and samples of which none are alike."""
    values = {
        "workload__checkpoint": {**SAVING, "every": every},
        "workload__last_batch": "keep",
        "workload__local_batch_size": 4,
        "cluster__topology__link_bandwidth": "10 GB/s",
        "world_size": 10,
        "epochs": 4,
    }
    healthy = lengths(simulate(uneven(**values)))
    faults, recovery = [], {**AWAY, "policy": policy, "spares": 3 * (policy == "spare")}
    after = [healthy[0] + 0.45 * healthy[1], 3.1 + 0.3 * healthy[1], 3.1 + 1.6 * healthy[1]]
    for number, at in enumerate(np.cumsum(after)):
        faults.append({"what": f"h000{number}", "at": f"{at} s", "rate": 0})
    timeline = simulate(uneven(**values, faults=faults, recovery=recovery))
    losses, table = timeline.facts["losses"], report.epochs(timeline).set_index("epoch")
    assert [loss["host"] for loss in losses] == ["h0000", "h0001", "h0002"]
    assert losses[0]["epoch"] == losses[1]["epoch"] == 2
    for epoch, row in table.iterrows():
        links = timeline.links[timeline.links["epoch"] == epoch]
        assert links["link"].is_unique
        carried = links["mean_utilisation"] * links["capacity"] * row["epoch_s"]
        # what was under way when a host was lost is in use of a link, and no bytes of it
        nbytes = links["nbytes"]
        more = (carried - nbytes)[(links["unit"] == "B") & (nbytes > 0)]
        assert (more >= -1e-6 * nbytes[more.index]).all()
        assert (more <= 0.1 * nbytes[more.index] + 1e6).all()
        (source,) = timeline.sources[timeline.sources["epoch"] == epoch].to_dict("records")
        of_ssds = links["nbytes"][links["tier"] == "ssd"].sum()
        assert source["nbytes_ssd"] == pytest.approx(of_ssds)
        rows = timeline.phases[timeline.phases["epoch"] == epoch]
        assert source["iterations"] == rows["iteration"].max()
        said = timeline.facts["completeness"][epoch - 1]
        assert source["samples"] == round(said["seen"] * 170) == 170
        redone = sum(loss["redone_samples"] for loss in losses if loss["epoch"] == epoch)
        again = round(said["twice"] * 170) - redone
        assert again >= 0  # also what was not saved of the epoch before
        assert again == 0 or every == 9
    for loss in losses:
        gone = loss["at_s"] + 3.0 + loss["restore_s"] + loss["reread_s"]
        begun = timeline.phases[timeline.phases["phase"] == "restart"]["end_s"]
        assert np.isclose(begun, gone).any()


def test_a_job_that_stops_has_no_epoch_more():
    _, healthy = run()
    at, saved = middle(healthy)
    _, timeline = run(at, recovery={**AWAY, "policy": "stop"})
    assert report.epochs(timeline)["epoch"].tolist() == [1, 2]
    assert float(timeline.phases["end_s"].max()) == pytest.approx(at)
    assert timeline.facts["losses"][0]["redone_s"] == pytest.approx(at - saved)
    assert timeline.facts["completeness"][1]["seen"] == pytest.approx(0.4)


def test_a_second_loss_waits_for_the_host_where_no_spare_is_left():
    _, healthy = run()
    at, _ = middle(healthy)
    faults = [
        {"what": "h0000", "at": f"{at} s", "rate": 0},
        {"what": "h0001", "at": f"{at + 3.5} s", "rate": 0, "for": "20 s"},
    ]
    values = {"epochs": 3, "workload__checkpoint": SAVING, "faults": faults}
    timeline = simulate(small(**values, recovery={"spares": 1, **AWAY}))
    first, second = timeline.facts["losses"]
    assert first["waited_s"] == 0
    # the repair goes on during the 1 s of detection, and the job starts when it is over
    assert second["waited_s"] == pytest.approx(20.0 - 1.0)
    spent = sum(second[name] for name in ABSENCE_PHASES)
    begun = timeline.phases[timeline.phases["phase"] == "restart"]["end_s"].max()
    assert begun == pytest.approx(at + 3.5 + spent)
    assert spent == pytest.approx(20.0 + 2.0 + second["restore_s"] + second["reread_s"])
    assert timeline.facts["completeness"][1]["seen"] == 1.0


def lose_hosts(healthy, losses, recovery, **values):
    """Lose hosts after the middle of an iteration of the second epoch.

    ``losses`` has for each host when it is lost, in s after that moment, and for how long, None
    for ever. Returns that moment, the end of the last save before, and the timeline.
    """
    at, saved = middle(healthy)
    faults = [
        {"what": host, "at": f"{at + after} s", "rate": 0}
        | ({"for": f"{lasts} s"} if lasts else {})
        for host, after, lasts in losses
    ]
    values = {"epochs": 3, "workload__checkpoint": SAVING, **values}
    scenario = small(**values, faults=faults, recovery={**AWAY, **recovery})
    return at, saved, simulate(scenario)


H0, H1, H2, S0, S1 = "h0000", "h0001", "h0002", "h0008", "h0009"  # three of the job, two spares


@pytest.mark.parametrize(
    ("spares", "losses", "booked"),
    [
        # a loss 0.5 s into the restart: 1 s + 0.5 s, and again 1 s + 2 s; whoever it is
        (2, [(H0, 0, None), (H1, 1.5, None)], [(1, 0, 0.5), (1, 0, 2)]),
        (2, [(H0, 0, None), (S0, 1.5, None)], [(1, 0, 0.5), (1, 0, 2)]),
        # and 0.3 s into the second restart
        (3, [(H0, 0, None), (H1, 1.5, None), (H2, 2.8, 1)], [(1, 0, 0.5), (1, 0, 0.3), (1, 0, 2)]),
        # a loss during detection is noticed with the first
        (2, [(H0, 0, None), (H1, 0.4, None)], [(1, 0, 2), (0, 0, 0)]),
        # a repair, from 0 s to 8 s, begins with the loss: 7 s are left after detection
        (0, [(H0, 0, 8)], [(1, 7, 2)]),
        (0, [(H0, 0, 0.5)], [(1, 0, 2)]),
        # the other is lost while the job waits, and back at 2.5 + 3 = 5.5 s, or 2.5 + 7 = 9.5 s
        (0, [(H0, 0, 8), (H1, 2.5, 3)], [(1, 7, 2), (0, 0, 0)]),
        (0, [(H0, 0, 8), (H1, 2.5, 7)], [(1, 8.5, 2), (0, 0, 0)]),
        # a loss at 8 + 0.5 s, 0.5 s into the restart, is noticed at 9.5 s and repaired at 14.5 s
        (0, [(H0, 0, 8), (H1, 8.5, 6)], [(1, 7, 0.5), (1, 5, 2)]),
        # the spare is lost while the job waits for a second host, which then takes its place: the
        # first place is filled at 4 s, the second one by the spare at 6 s
        (1, [(H0, 0, None), (H1, 0, 4), (S0, 2, 4)], [(1, 5, 2), (0, 0, 0), (0, 0, 0)]),
        # a spare that is lost before it is needed is none until it is repaired, at 4 s
        (1, [(S0, -0.5, 4.5), (H0, 0, None)], [(1, 3, 2)]),
        (2, [(S0, -0.5, None), (H0, 0, None)], [(1, 0, 2)]),
    ],
)
def test_a_job_starts_again_when_its_hosts_are_there_and_anew_when_it_loses_one(
    spares, losses, booked
):
    """Detection takes 1 s, then the job waits for hosts, then a restart takes 2 s.

    ``booked`` has the s of each that every loss of a host of the job costs.
    """
    _, healthy = run()
    at, saved, timeline = lose_hosts(healthy, losses, {"spares": spares})
    rows = timeline.facts["losses"]
    columns = ("detect_s", "waited_s", "restart_s")
    assert [[row[name] for name in columns] for row in rows] == [pytest.approx(s) for s in booked]
    # what follows the restart is not cut off; nothing was done between the losses
    owner = max(index for index, row in enumerate(booked) if row[0])
    restore_s, reread_s = rows[owner]["restore_s"], rows[owner]["reread_s"]
    assert [row["restore_s"] for row in rows].count(0) == len(rows) - 1
    assert restore_s > 0
    assert [row["redone_s"] for row in rows] == [pytest.approx(at - saved)] + [0] * (len(rows) - 1)
    assert sum(row["redone_samples"] for row in rows) == RANKS * BATCH
    gone_s = sum(map(sum, booked)) + restore_s + reread_s
    restart = seconds(timeline, "restart", 2)
    assert list(restart.values()) == pytest.approx([gone_s] * RANKS)
    first_batch = (seconds(healthy, name, 2) for name in ("io", "decode"))
    refill_s = sum(sum(by_rank.values()) / RANKS for by_rank in first_batch)
    expected = lengths(healthy)[1] + at - saved + gone_s + refill_s
    assert lengths(timeline)[1] == pytest.approx(expected, rel=1e-6)
    assert_no_gap(timeline)
    assert [each["seen"] for each in timeline.facts["completeness"]] == [1.0] * 3


def test_the_month_follows_the_law_of_the_simulation():
    """Two losses of the job and one of a spare: 1 + 0.5 s, then 1 s and 2.5 s until the spare, lost
    0.5 s before and away for 5.5 s, is there, then 2 s."""
    _, healthy = run()
    losses = [(S0, -0.5, 5.5), (H0, 0, 1.2), (H1, 1.5, None)]
    at, _, timeline = lose_hosts(healthy, losses, {"spares": 1, "reread": True})
    rows = timeline.facts["losses"]
    hosts = np.array([8, 0, 1])
    start = np.array([at + after for _, after, _ in losses])
    end = start + np.array([lasts or 1e6 for *_, lasts in losses])
    faults = Faults(hosts, start, end, np.zeros(3, int), ("lost",))
    policy = RestartPolicy(8, 1, "spare", 1.0, 2.0, rows[-1]["restore_s"], rows[-1]["reread_s"], ())
    (down_s, _) = follow_job(faults, policy, 1e4).down_s
    columns = ("detect_s", "waited_s", "restart_s", "restore_s", "reread_s")
    simulated = [sum(row[name] for row in rows) for name in columns]
    assert down_s.tolist() == pytest.approx(simulated)
    # h0000 is back at 1.2 s, so that the first restart waits 0.2 s; the loss at 1.5 s is 0.3 s into
    # it, and is noticed at 2.5 s; the spare is there at 5 s
    assert simulated[:3] == pytest.approx([2.0, 0.2 + 2.5, 0.3 + 2.0])


def test_the_spare_that_joins_is_there():
    """Of epoch 2 the new host reads 6 of 10 batches of 10 samples, the others have theirs in
    caches."""
    values = {"cluster__memory__page_cache": "10 GB"}
    _, healthy = run(**values)
    for lasts, host in ((None, S1), (1.0, S0)):  # away to the end, and until 0.5 s after the loss
        losses = [(S0, -0.5, lasts), (H0, 0, None)]
        _, _, timeline = lose_hosts(healthy, losses, {"spares": 2}, **values)
        links = timeline.links[timeline.links["epoch"] == 2].set_index("link")["nbytes"]
        read = {name: nbytes for name, nbytes in links.items() if str(name).endswith(".ssd")}
        assert read == pytest.approx({f"{host}.ssd": 6 * BATCH * 100e3})


@pytest.mark.parametrize("reread", [False, True])
def test_an_elastic_job_that_loses_another_host_in_its_restart_begins_it_anew(reread):
    """6 of 8 ranks go on after 1 + 0.5 s and 1 + 2 s; both shards, of 100 samples of 100 kB, are
    read by them once more, a sixth each."""
    _, healthy = run()
    losses = [(H0, 0, None), (H1, 1.5, 60)]
    _, _, timeline = lose_hosts(healthy, losses, {"policy": "elastic", "reread": reread})
    rows = timeline.facts["losses"]
    assert [row["ranks"] for row in rows] == [6, 6]
    assert [row["reread_nbytes"] for row in rows] == pytest.approx([0, 2 * 10e6 * reread])
    last = rows[-1]
    assert last["reread_s"] == pytest.approx(2 * 0.01 / 6 * reread, rel=1e-2)
    expected = 1.5 + 3.0 + last["restore_s"] + last["reread_s"]
    assert list(seconds(timeline, "restart", 2).values()) == pytest.approx([expected] * RANKS)
    seen = [each["seen"] for each in timeline.facts["completeness"]]
    # 4 of 10 iterations by 8 ranks and 6 by 6, then 6 of 8 shards; or all 800 samples, then 133 of
    # each rank, which are 13 batches of 10
    expected = [1, 1, 6 * 130 / 800] if reread else [1, (4 * 8 + 6 * 6) / 80, 6 / 8]
    assert seen == pytest.approx(expected)
    assert report.epochs(timeline)["world_size"].tolist() == [8, 8, 6]
    assert_no_gap(timeline)


@pytest.mark.parametrize(
    ("cut_s", "parts_s", "nbytes"),
    [
        (7.5, (1, 2, 3, 0.5, 1), 2e6),  # 1 of 4 s of reading: a quarter of 8 MB
        (4.25, (1, 2, 1.25, 0, 0), 0),
        (99, (1, 2, 3, 0.5, 4), 8e6),
    ],
)
def test_a_recovery_that_is_cut_off_has_its_first_parts(cut_s, parts_s, nbytes):
    names = ("detect_s", "waited_s", "restart_s", "restore_s", "reread_s")
    parts = dict(zip(names, (1.0, 2.0, 3.0, 0.5, 4.0), strict=True))
    loss = Loss("h0000", 1, 5.0, "spare", redone_s=0.25, reread_nbytes=8e6, **parts)
    assert loss.absent_s == 10.5
    cut = loss.cut_off(cut_s)
    assert tuple(getattr(cut, name) for name in names) == pytest.approx(parts_s)
    assert (cut.reread_nbytes, cut.redone_s, cut.at_s) == (pytest.approx(nbytes), 0.25, 5.0)


def test_a_spare_that_is_lost_for_ever_does_not_replace_a_host_that_is():
    _, healthy = run()
    with pytest.raises(InputError, match=r"recovery\.spares: must be enough.*h0000 is lost"):
        lose_hosts(healthy, [(S0, -0.5, None), (H0, 0, None)], {"spares": 1})
    with pytest.raises(InputError, match=r"recovery\.policy: must leave a host"):
        losses = [(f"h000{number}", number, None) for number in range(8)]
        lose_hosts(healthy, losses, {"policy": "elastic"})


def test_a_lost_host_without_a_spare_is_refused():
    with pytest.raises(InputError, match=r"recovery\.spares: must be enough") as caught:
        run(0.1, recovery={**AWAY, "spares": 0})
    assert "policy: elastic" in str(caught.value)


def test_a_spare_host_cannot_train_on_a_shard_that_it_does_not_read():
    with pytest.raises(InputError, match=r"recovery\.reread: must be true"):
        run(0.1, recovery={**AWAY, "reread": False})
    # what is on the file system is there
    run(0.1, workload__exchange="global_shuffle:source=pfs", recovery={**AWAY, "reread": False})


def test_a_run_that_is_recorded_loses_no_host():
    values = {"faults": [{"what": "h0000", "at": "0.1 s", "rate": 0}], "recovery": {"spares": 1}}
    with pytest.raises(InputError, match=r"faults: must lose no host in a run that is recorded"):
        list(simulate_epochs(small(**values), recorder=Recorder(1.0)))
    with pytest.raises(InputError, match=r"simulated from a later epoch on"):
        list(simulate_epochs(small(epochs=2, **values), first_epoch=2))


def test_an_order_of_a_library_is_not_divided_anew():
    order = {"kind": "loader_shuffle", "order": "own:shuffle=global", "samples_per_shard": 20}
    with pytest.raises(InputError, match=r"recovery\.policy: must not be elastic"):
        run(0.1, workload__exchange=order, recovery={**AWAY, "policy": "elastic"})


@pytest.mark.parametrize("every", [2, 3, 30])
def test_a_loss_soon_after_an_epoch_begins(every):
    """The last checkpoint is at the very end of the epoch before, one iteration before it, or there
    is none yet."""
    saving = {**SAVING, "every": every}
    _, healthy = run(workload__checkpoint=saving)
    first, second, _ = lengths(healthy)
    at = first + 0.05 * second
    _, timeline = run(at, workload__checkpoint=saving)
    (loss,) = timeline.facts["losses"]
    assert loss["redone_samples"] == 0
    done_again = {2: 0.0, 3: 0.1 * first, 30: first}[every]
    away = 3.0 + loss["restore_s"] + loss["reread_s"]
    expected = second + at - first + away + done_again
    # the loaders begin anew, and the iteration that ends an epoch is none of the mean
    assert lengths(timeline)[1] == pytest.approx(expected, abs=0.06 * first)
    assert [each["seen"] for each in timeline.facts["completeness"]] == [1.0] * 3


def test_a_spare_host_has_an_empty_page_cache():
    """In epoch 2 all reads hit, but those of the spare host: 6 of 10 batches of 10 samples."""
    values = {"cluster__memory__page_cache": "10 GB"}
    _, healthy = run(**values)
    _, timeline = run(middle(healthy)[0], **values)
    links = timeline.links[timeline.links["epoch"] == 2].set_index("link")["nbytes"]
    read = {name: nbytes for name, nbytes in links.items() if str(name).endswith(".ssd")}
    assert read == pytest.approx({"h0008.ssd": 6 * BATCH * 100e3})


def test_saves_go_on_in_their_rhythm_after_a_loss():
    """Every third of all iterations: of epoch 2, after 10 of the first, the 2nd, 5th and 8th."""
    saving = {**SAVING, "every": 3}
    _, healthy = run(workload__checkpoint=saving)
    rows = healthy.phases[healthy.phases["epoch"] == 2]
    at = rows[(rows["iteration"] == 4) & (rows["phase"] == "forward")]["start_s"].min() + 1e-3
    _, timeline = run(float(at), workload__checkpoint=saving)
    for of in (healthy, timeline):
        saves = of.phases[(of.phases["epoch"] == 2) & (of.phases["phase"] == "checkpoint")]
        assert sorted(set(saves["iteration"])) == [2, 5, 8]


def test_faults_that_go_on_after_a_loss_are_booked_once():
    """Two of one device, which begin apart, and two of another that begin with the first."""
    _, healthy = run()
    at, _ = middle(healthy)
    begun = [("h0003.ssd", 0.2), ("h0003.ssd", 0.1), ("h0004.ssd", 0.2), ("h0004.ssd", 0.2)]
    slow = [(what, at - before) for what, before in begun]
    faults = [{"what": what, "at": f"{begin} s", "rate": 0.5} for what, begin in slow]
    faults.append({"what": "h0000", "at": f"{at} s", "rate": 0})
    values = {"epochs": 3, "workload__checkpoint": SAVING, "faults": faults}
    rows = []
    list(simulate_epochs(small(**values, recovery={"spares": 1, **AWAY}), struck=rows))
    booked = sorted((row["what"], row["at_s"]) for row in rows)
    assert [(what, pytest.approx(begin)) for what, begin in sorted(slow)] == [
        row for row in booked if row[0] != "h0000"
    ]


def test_the_share_of_iterations_that_is_done_is_told():
    """Of 30; a loss in the sixth of the second epoch takes it back to the fourth, of which there is
    a checkpoint."""
    _, healthy = run()
    for at, expected in (
        (None, range(1, 31)),
        (middle(healthy)[0], [*range(1, 16), *range(15, 31)]),
    ):
        told = []
        list(simulate_epochs(run(at)[0], progress=told.append))
        assert told == pytest.approx([done / 30 for done in expected])
