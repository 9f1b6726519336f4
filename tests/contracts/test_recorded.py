"""Recorded exchanges: replayed one to one, and scaled up by the stated rule."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.errors import InputError, ScenarioError
from simshuffle.job.plan.epochs import plan_epochs, sample_nbytes
from simshuffle.job.sim.simulate import simulate
from simshuffle.workload.exchange import ImportancePair, PartialLocalShuffle, Recorded
from simshuffle.workload.exchange.plan import initial_owner
from simshuffle.workload.exchange.recording import RecordedPlans, write_plans
from tests.examples import partial, planned_epoch, recorded_plans
from tests.small import small

PAIR = {
    "partner_rule": "importance_sorted",
    "partner_lifetime": "epoch",
    "samples_per_message": "iteration",
}
EPOCHS, RANKS, SAMPLES, BATCH, ITERATIONS = 3, 8, 160, 5, 4


def record(strategy: Any, epochs: int = EPOCHS, samples: int = SAMPLES) -> RecordedPlans:
    """What a training of that strategy would leave: 20 samples a rank in four iterations of 5."""
    owner = initial_owner(samples, RANKS, np.random.default_rng(5))
    random = [np.random.default_rng(epoch) for epoch in range(1, epochs + 1)]
    return recorded_plans(strategy, owner, RANKS, random, iterations=-(-samples // RANKS // BATCH))


def pair() -> ImportancePair:
    return ImportancePair(kind="importance_pair", exchange_fraction=0.3)


def stored(folder: Path, found: RecordedPlans, **values: Any) -> Recorded:
    path = folder / "plans.npz"
    write_plans(path, found)
    plain = {"kind": "recorded", "path": str(path), "exchange_fraction": 0.3, "schedule": PAIR}
    return Recorded.model_validate(plain | values)


def scenario(replay: Recorded, **values: Any) -> Any:
    base = {
        "workload__local_batch_size": BATCH,
        "workload__dataset__num_samples": SAMPLES,
        "epochs": EPOCHS,
    }
    return small(
        workload__exchange=replay.model_dump(mode="json", exclude_none=True), **(base | values)
    )


def test_one_to_one_every_sample_goes_where_it_went(tmp_path):
    found = record(pair())
    of = scenario(stored(tmp_path, found))
    owner = found.owner
    for plan, recorded in zip(plan_epochs(of, sample_nbytes(of)), found.plans, strict=True):
        for name in ("sample", "target", "iteration", "message"):
            assert np.array_equal(getattr(plan.exchange, name), getattr(recorded, name))
        held = np.empty(SAMPLES, int)
        held[plan.shards.order] = np.repeat(np.arange(RANKS), plan.shards.sizes)
        assert np.array_equal(held, owner)
        owner = recorded.apply(owner)


def test_a_replay_takes_as_long_as_the_strategy_itself(tmp_path):
    """The simulator's own plan, recorded and replayed: the same phases to the last, but for the
    importance, which is not measured again."""
    strategy = {"kind": "importance_pair", "exchange_fraction": 0.3, "lagging": True}
    own = small(
        workload__exchange=strategy,
        workload__local_batch_size=BATCH,
        workload__dataset__num_samples=SAMPLES,
        epochs=EPOCHS,
    )
    plans = list(plan_epochs(own, sample_nbytes(own)))
    owner = np.empty(SAMPLES, np.int32)
    owner[plans[0].shards.order] = np.repeat(np.arange(RANKS), plans[0].shards.sizes)
    replay = scenario(stored(tmp_path, RecordedPlans(owner, [plan.exchange for plan in plans])))
    one, other = simulate(own).phases, simulate(replay).phases
    assert one.drop(columns="run").equals(other.drop(columns="run"))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 40), st.booleans())
def test_scaled_up_every_recorded_sample_stands_for_others(
    tmp_path_factory, each, copies, rest, paired
):
    """Undone by the rule, each epoch's plan is the recorded one, as often as it was copied; what is
    beyond the multiple stays."""
    found = record(pair() if paired else partial(0.3))
    schedule = PAIR if paired else {}
    replay = stored(
        tmp_path_factory.mktemp("plans"),
        found,
        samples_each=each,
        ranks_each=copies,
        schedule=schedule,
    )
    count, ranks = SAMPLES * each * copies + rest, RANKS * copies
    owner = replay.first_owner(count, ranks, np.random.default_rng(0))
    placed = replay._place_ranks(RANKS)
    assert sorted(placed.ravel().tolist()) == list(range(ranks))
    for epoch, recorded in enumerate(found.plans, 1):
        rng = np.random.default_rng(epoch)
        shards = replay.shards(owner, ranks, rng)
        plan = planned_epoch(
            replay, shards, rng, batch=BATCH * each, iterations=ITERATIONS, epoch=epoch
        )
        assert (np.sort(plan.target, axis=1) == np.arange(ranks)).all()
        assert np.array_equal(
            owner[plan.sample], np.broadcast_to(np.arange(ranks), plan.sample.shape)
        )
        for copy, at in enumerate(placed):
            sample = plan.sample[:, at] // each - copy * SAMPLES
            assert np.array_equal(sample, np.repeat(recorded.sample, each, axis=0))
            assert np.array_equal(plan.target[:, at], at[np.repeat(recorded.target, each, axis=0)])
        assert np.array_equal(
            plan.sample[:, 0] % each, np.tile(np.arange(each), len(recorded.sample))
        )
        together = plan.message[1:] == plan.message[:-1]
        assert (plan.target[1:][together] == plan.target[:-1][together]).all()
        assert (plan.iteration[1:][together] == plan.iteration[:-1][together]).all()
        after = plan.apply(owner)
        assert np.array_equal(
            np.bincount(after, minlength=ranks), np.bincount(owner, minlength=ranks)
        )
        assert np.array_equal(after[count - rest :], owner[count - rest :])
        owner = after


def test_a_scaled_replay_keeps_the_pace_of_the_target(tmp_path):
    """6 samples of 20 in an epoch, each standing for two, in 8 iterations of batch 5: 1.5 an
    iteration, by floor with carry."""
    replay = stored(tmp_path, record(pair()), samples_each=2)
    of = scenario(replay, workload__dataset__num_samples=2 * SAMPLES)
    plan = next(plan_epochs(of, sample_nbytes(of))).exchange
    assert np.bincount(plan.iteration, minlength=8).tolist() == [1, 2, 1, 2, 1, 2, 1, 2]
    assert len(np.unique(plan.message)) == 8


def test_a_message_ends_where_the_partners_change(tmp_path):
    """One partner for each of four iterations of 1.5 samples; in 8 iterations, each standing for
    two, some have samples of two partners."""
    schedule = {"partner_lifetime": "iteration", "samples_per_message": "iteration"}
    strategy = PartialLocalShuffle.model_validate(
        {"kind": "partial_local_shuffle", "exchange_fraction": 0.3, "schedule": schedule}
    )
    replay = stored(tmp_path, record(strategy), samples_each=2, schedule=schedule)
    of = scenario(
        replay, workload__dataset__num_samples=2 * SAMPLES, workload__local_batch_size=2 * BATCH
    )
    plan = next(plan_epochs(of, sample_nbytes(of))).exchange
    changes = (plan.target[1:] != plan.target[:-1]).any(axis=1)
    assert changes.sum() == 3
    assert (np.diff(plan.message)[changes] == 1).all()
    assert (np.diff(plan.iteration)[changes] == 0).any()


def test_an_epoch_without_exchange(tmp_path):
    replay = stored(tmp_path, record(partial(0.0)), exchange_fraction=0)
    of = scenario(replay)
    assert [plan.exchange.samples_moved for plan in plan_epochs(of, sample_nbytes(of))] == [0, 0, 0]
    simulate(of)


def test_the_inference_pass_is_timed_if_it_was_made(tmp_path):
    with_pass, without = (
        scenario(stored(tmp_path, record(pair()), measures_importance=flag))
        for flag in (True, False)
    )
    assert next(plan_epochs(with_pass, sample_nbytes(with_pass))).inference is not None
    assert next(plan_epochs(without, sample_nbytes(without))).inference is None


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"world_size": 16}, "world_size: must be 1 times the 8 ranks that were recorded; got 16"),
        (
            {"workload__dataset__num_samples": 159},
            "num_samples: must be at least 1 times the 160",
        ),
        ({"epochs": 4}, "epochs: must be at most the 3 that were recorded; got 4"),
    ],
)
def test_another_scale_is_refused(tmp_path, values, text):
    with pytest.raises(ScenarioError, match=text):
        scenario(stored(tmp_path, record(pair())), **values)


def test_files_that_are_missing_damaged_or_changed_are_named(tmp_path):
    replay = stored(tmp_path, record(pair()))
    with pytest.raises(ScenarioError, match=r"workload\.exchange\.path: no such file"):
        scenario(replay.model_copy(update={"path": str(tmp_path / "none.npz")}))
    of = scenario(replay)
    assert of.workload.exchange.sha256 is not None
    write_plans(tmp_path / "plans.npz", record(pair(), epochs=5))
    with pytest.raises(ScenarioError, match="no longer the one that sha256 names"):
        of.with_values({"seed": 1})
    (tmp_path / "plans.npz").write_bytes(b"PK nothing")
    with pytest.raises(ScenarioError, match="cannot be read as recorded plans"):
        scenario(replay)
    with pytest.raises(InputError):
        replay.read_recorded_plans()


def test_the_path_of_a_scenario_file_is_taken_from_its_folder(tmp_path, monkeypatch):
    from simshuffle.job.scenario.scenario import load_scenario

    replay = stored(tmp_path, record(pair()))
    text = scenario(replay).to_yaml().replace(str(tmp_path / "plans.npz"), "plans.npz")
    (tmp_path / "replay.yaml").write_text(text)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_scenario(str(tmp_path / "replay.yaml")).workload.exchange.path == str(
        tmp_path / "plans.npz"
    )  # type: ignore[union-attr]


def test_samples_beyond_the_multiple_are_dealt_in_turn(tmp_path):
    replay = stored(tmp_path, record(pair()), ranks_each=2)
    owner = replay.first_owner(2 * SAMPLES + 18, 2 * RANKS, np.random.default_rng(0))
    assert owner[2 * SAMPLES :].tolist() == [*range(16), 0, 1]
    # of each of the 16 ranks as many as a recorded rank had
    assert np.bincount(owner[: 2 * SAMPLES]).tolist() == [SAMPLES // RANKS] * 16


def test_an_epoch_that_was_not_recorded_is_refused(tmp_path):
    replay = stored(tmp_path, record(pair()))
    rng = np.random.default_rng(0)
    shards = replay.shards(replay.first_owner(SAMPLES, RANKS, rng), RANKS, rng)
    with pytest.raises(InputError, match="epochs: must be at most the 3 that were recorded; got 4"):
        planned_epoch(replay, shards, rng, epoch=4)
    assert replay.check(SAMPLES, RANKS, 3) == []
    assert [problem.path for problem in replay.check(SAMPLES, RANKS, 4)] == ["epochs"]
