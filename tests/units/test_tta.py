"""Time to accuracy from end to end: a study's folder made by hand joined with simulations; what is
refused; the command line. No torch."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.extensions.learning.time_to_accuracy import simulated
from simshuffle.extensions.learning.time_to_accuracy.join import Join, first_answer, request
from simshuffle.extensions.learning.time_to_accuracy.study import STUDY, TimeToAccuracy
from simshuffle.extensions.learning.time_to_accuracy.text import _sort_reaching_rows
from simshuffle.extensions.learning.time_to_accuracy.verb import TtaOptions
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.simulate import simulate
from simshuffle.studies.training.tables import (
    EPOCH_COLUMNS,
    IMPORTANCE_COLUMNS,
    ITERATION_COLUMNS,
    RunRecord,
)
from simshuffle.study import engine
from simshuffle.workload.exchange import (
    GlobalShuffle,
    ImportancePair,
    LoaderShuffle,
    LocalShuffle,
    PartialLocalShuffle,
)
from simshuffle.workload.exchange.plan import initial_owner
from simshuffle.workload.exchange.recording import RecordedPlans
from tests.examples import recorded_plans, rng
from tests.small import small
from tests.trained import saved, time_to_accuracy

RANKS, SAMPLES, BATCH, EPOCHS = 8, 160, 5, 3
GLOBAL = GlobalShuffle(kind="global_shuffle")
LAGGING = ImportancePair(kind="importance_pair", exchange_fraction=0.3, lagging=True)
REACHED = {"global": (0.5, 0.8, 0.9), "ILag-Pair": (0.4, 0.85, 0.88), "local": (0.3, 0.5, 0.6)}


def recorded(strategy: Any, seed: int) -> RecordedPlans:
    """What a training of that strategy would leave."""
    owner = initial_owner(SAMPLES, RANKS, np.random.default_rng(seed))
    return recorded_plans(strategy, owner, RANKS, [rng(seed, e + 1) for e in range(EPOCHS)])


def row(columns: dict[str, str], **values: Any) -> dict[str, Any]:
    return dict.fromkeys(columns, float("nan")) | values


def record(name: str, strategy: Any, seed: int, status: Any = "done") -> RunRecord:
    """A run of three epochs; seed 1 is 0.03 better than seed 0. A failed one ends after the
    second."""
    ended = EPOCHS if status == "done" else 2
    reached = [accuracy + 0.03 * seed for accuracy in REACHED[name][:ended]]
    epochs = [
        row(EPOCH_COLUMNS, epoch=e, samples=SAMPLES, moved=0, importance_s=0.0, own_accuracy=a)
        for e, a in enumerate(reached, 1)
    ]
    importance = [
        row(IMPORTANCE_COLUMNS, epoch=e, source="training", between_ranks=0.1 * e)
        for e in range(1, ended + 1)
    ]
    return RunRecord(
        description={
            "num_samples": SAMPLES,
            "local_batch_size": BATCH,
            "exchange": strategy.model_dump(mode="json"),
        },
        status=status,
        message="" if status == "done" else "the loss is not finite",
        epochs=pd.DataFrame(epochs, columns=list(EPOCH_COLUMNS)),
        iterations=pd.DataFrame(columns=list(ITERATION_COLUMNS), dtype=float),
        importance=pd.DataFrame(importance, columns=list(IMPORTANCE_COLUMNS)),
        plans=None if strategy.exchange_schedule is None else recorded(strategy, seed),
        seconds=1.0,
    )


def described(strategy: str, fraction: float | None, seed: int) -> dict[str, Any]:
    return {
        "variant": "",
        "batch_norm": "per_rank",
        "world_size": RANKS,
        "strategy": strategy,
        "exchange_fraction": fraction,
        "seed": seed,
        "data": "made",
        "model": "up",
        "partition": "random",
        "epochs_planned": EPOCHS,
        "learning_rate": 0.1,
    }


def study(folder: Path, runs: dict[str, RunRecord | None], of: dict[str, dict[str, Any]]) -> Path:
    """The folder that a training of these runs would leave; None is one that is missing."""
    return saved(folder, "made", {name: run for name, run in runs.items() if run}, of)


def two_strategies(folder: Path, name: str = "ILag-Pair", strategy: Any = LAGGING) -> Path:
    kinds = {"global": (GLOBAL, None), name: (strategy, strategy.fraction)}
    keys = [(kind, seed) for kind in kinds for seed in (0, 1)]
    runs: dict[str, RunRecord | None] = {
        f"{kind}_s{seed}": record(kind, kinds[kind][0], seed) for kind, seed in keys
    }
    return study(
        folder,
        runs,
        {f"{kind}_s{seed}": described(kind, kinds[kind][1], seed) for kind, seed in keys},
    )


def of_scale(**values: Any) -> Scenario:
    """A scenario of the scale of the training."""
    return small(
        **(
            {
                "workload__dataset__num_samples": SAMPLES,
                "workload__local_batch_size": BATCH,
                "world_size": RANKS,
            }
            | values
        )
    )


def prepare(folder: Path, scenario: Scenario, **options: Any) -> Join:
    """What is asked of the study."""
    asked = TtaOptions(study=folder, scenario=scenario, **options)
    prepared = request(asked, folder, scenario).values
    assert isinstance(prepared, Join)
    return prepared


def read(folder: Path) -> TimeToAccuracy:
    result = engine.read(STUDY, folder)
    assert isinstance(result, TimeToAccuracy)
    return result


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_strategies(tmp_path_factory.mktemp("study") / "made")


def test_end_to_end(made):
    """Times are those of the strategy itself; accuracy is that of the folder."""
    found = time_to_accuracy(made, of_scale())
    settings = found.tables["settings"].set_index("setting")
    assert list(settings.index) == ["global (PFS)", "ILag-Pair 0.3"]
    plain = simulate(of_scale(workload__exchange="global_shuffle", epochs=2))
    ends = plain.phases.groupby("epoch")["end_s"].max()
    assert settings["cold_epoch_s"]["global (PFS)"] == pytest.approx(ends[1], rel=1e-12)
    assert settings["epoch_s"]["global (PFS)"] == pytest.approx(ends[2] - ends[1], rel=1e-12)
    for _, each in settings.iterrows():
        assert each["total_s"] == pytest.approx(
            each["staging_s"] + each["cold_epoch_s"] + 2 * each["epoch_s"], rel=1e-12
        )
        labels = each[["io_s", "fw_bw_s", "impt_s", "ge_wu_s", "exchange_s"]].sum()
        assert labels == pytest.approx(each["epoch_s"], rel=1e-9)
    assert settings["storage_nbytes"].tolist() == pytest.approx([0.0, 1.3 * SAMPLES * 100e3 / 8])
    assert settings["accuracy"].tolist() == pytest.approx([0.915, 0.895])
    assert settings["between_ranks"].tolist() == pytest.approx([0.3, 0.3])
    assert settings["impt_s"]["global (PFS)"] == 0
    assert settings["peer_nbytes"]["ILag-Pair 0.3"] > 0
    curve = found.tables["curves"][
        (found.tables["curves"]["setting"] == "ILag-Pair 0.3")
        & (found.tables["curves"]["seed"] == 1)
    ]
    pair = settings.loc["ILag-Pair 0.3"]
    assert curve["accuracy"].tolist() == pytest.approx([0.43, 0.88, 0.91])
    first = pair["staging_s"] + pair["cold_epoch_s"]
    assert curve["time_s"].tolist() == pytest.approx(
        [first, first + pair["epoch_s"], first + 2 * pair["epoch_s"]]
    )
    assert found.tables["targets"]["target"].unique().tolist() == pytest.approx([0.905, 0.885])
    assert (
        found.meta["rule"]
        == "8 ranks and 160 samples as trained; sizes of plain and step times of resnet50 on"
        " small-fat-tree"
    )


def test_what_is_simulated_follows_from_the_strategy(made):
    """The strategy's own schedule and plans, and its inference pass if it makes one."""
    prepared = prepare(made, of_scale(), global_source=["pfs", "ssd"], replayed_seeds=2)
    assert [setting.name for setting in prepared.settings] == [
        "global (PFS)",
        "global (SSD)",
        "ILag-Pair 0.3",
    ]
    exchanges = [
        replay.workload.exchange for setting in prepared.settings for replay in setting.replays
    ]
    assert [exchange.tier for exchange in exchanges] == ["pfs", "pfs", "ssd", "ssd", "ssd", "ssd"]
    assert [Path(exchange.path).name for exchange in exchanges[4:]] == [
        "ILag-Pair_s0.npz",
        "ILag-Pair_s1.npz",
    ]  # type: ignore[union-attr]
    assert exchanges[4].exchange_schedule.model_dump() == LAGGING.schedule.model_dump()  # type: ignore[union-attr]
    assert not exchanges[4].measures_importance
    assert [replay.seed for replay in prepared.settings[2].replays] == [
        of_scale().seed,
        of_scale().seed + 1,
    ]


def test_the_order_of_a_loader_is_simulated_as_itself(tmp_path):
    """32 shards of five samples of 100 kB, of which each of eight nodes keeps four after the first
    epoch; nothing is asked for again."""
    order = {"kind": "webdataset", "buffer_size": 4}
    loader = LoaderShuffle(kind="loader_shuffle", order=order, samples_per_shard=5, workers=2)
    folder = two_strategies(tmp_path / "made", name="local", strategy=loader)
    prepared = prepare(folder, of_scale())
    assert [setting.name for setting in prepared.settings] == ["global (PFS)", "local"]
    found = time_to_accuracy(folder, of_scale()).tables["settings"].set_index("setting")
    row = found.loc["local"]
    assert (row["storage_nbytes"], row["staging_requests"]) == (4 * 5 * 100e3, 0)
    assert (row["cold_requests"], row["requests"], row["total_requests"]) == (32, 0, 32)
    assert found["total_requests"]["global (PFS)"] == EPOCHS * SAMPLES


def test_scaled_up_the_replay_stands_for_more(made):
    """16 ranks and 700 samples: each rank stands for two, each sample for floor(700 / 320)."""
    prepared = prepare(
        made, of_scale(world_size=16, workload__dataset__num_samples=700), scale="ranks"
    )
    plain, replay = (setting.replays[0] for setting in prepared.settings)
    assert (
        (plain.world_size, plain.workload.dataset.num_samples)
        == (replay.world_size, replay.workload.dataset.num_samples)
        == (16, 700)
    )
    exchange: Any = replay.workload.exchange
    assert (exchange.kind, exchange.ranks_each, exchange.samples_each) == ("recorded", 2, 2)


@pytest.mark.parametrize(("lagging", "measured"), [(False, True), (True, False)])
def test_importance_is_measured_as_in_the_training(tmp_path, lagging, measured):
    strategy = ImportancePair(kind="importance_pair", exchange_fraction=0.3, lagging=lagging)
    folder = two_strategies(tmp_path / "made", strategy=strategy)
    assert (
        prepare(folder, of_scale()).settings[1].replays[0].workload.exchange.measures_importance
        is measured
    )


def test_the_scenarios_own_global_shuffle_says_where_it_reads(made):
    of = of_scale(workload__exchange={"kind": "global_shuffle", "source": "ssd"})
    assert prepare(made, of).settings[0].name == "global (SSD)"
    swept = of_scale().with_values(
        {"sweep": {"workload.exchange": ["local_shuffle", "global_shuffle:source=ssd"]}}
    )
    assert prepare(made, swept).settings[0].name == "global (SSD)"


def test_replays_of_several_seeds_are_averaged(made):
    one, two = (time_to_accuracy(made, of_scale(seed=seed)).tables["settings"] for seed in (1, 2))
    both = time_to_accuracy(made, of_scale(seed=1), replayed_seeds=2).tables["settings"]
    assert both["replays"].tolist() == [2, 2]
    assert both["total_s"][0] == pytest.approx((one["total_s"][0] + two["total_s"][0]) / 2)
    assert both["replay_spread_s"][0] == pytest.approx(abs(one["total_s"][0] - two["total_s"][0]))


def test_a_setting_that_does_not_fit_is_said_and_the_others_are_simulated(made):
    found = time_to_accuracy(made, of_scale(cluster__ssd__capacity="12 MB"), global_source=["ssd"])
    settings = found.tables["settings"].set_index("setting")
    assert "keeps 16 MB of plain" in settings["message"]["global (SSD)"]
    assert np.isnan(settings["total_s"]["global (SSD)"])
    assert settings["on_front"].tolist() == [False, True]
    assert "global (SSD) cannot be simulated" in found.report
    # what it reached is known, not when
    assert found.tables["targets"]["reached"].tolist() == [1, 1, 2, 1]
    with pytest.raises(InputError, match="keeps"):
        prepare(made, of_scale(cluster__ssd__capacity="1 MB"), global_source=["ssd"])


def test_failed_runs_count_as_not_reached_unless_they_had_reached_it(tmp_path):
    runs: dict[str, RunRecord | None] = {
        "a": record("global", GLOBAL, 0),
        "b": record("global", GLOBAL, 1, "failed"),
        "c": None,
    }
    folder = study(
        tmp_path / "made",
        runs,
        {name: described("global", None, seed) for seed, name in enumerate(runs)},
    )
    found = time_to_accuracy(folder, of_scale(), target=[0.89, 0.82])
    targets = found.tables["targets"].set_index("target")
    assert targets["n"].tolist() == [2, 2]
    assert targets["reached"].to_dict() == {0.89: 1, 0.82: 2}
    assert found.tables["settings"]["failed_seeds"].tolist() == [1]
    assert found.tables["settings"]["accuracy"].tolist() == [0.9]
    assert "UNFINISHED: 1 of the 3 runs" in found.report
    assert "1 trainings failed" in found.report


def test_without_global_shuffle_there_are_no_default_targets(tmp_path):
    local = LocalShuffle(kind="local_shuffle")
    runs: dict[str, RunRecord | None] = {"a": record("local", local, 0)}
    found = time_to_accuracy(
        study(tmp_path / "made", runs, {"a": described("local", 0.0, 0)}), of_scale()
    )
    assert not len(found.tables["targets"])
    assert "no global shuffle in this condition" in found.report
    found.save(tmp_path / "out")
    assert not len(read(tmp_path / "out").tables["targets"])
    # one seed: columns without any number
    assert main(["results", "plot", str(tmp_path / "out"), "--out", str(tmp_path / "again")]) == 0
    for name in ("frontier.png", "accuracy_time.png"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


# ----------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"world_size": 16},
            "--world-size: must be a value with finished runs in the study: 8; got 16",
        ),
        (
            {"batch_norm": "sync"},
            "--batch-norm: must be a value with finished runs in the study: per_rank; got sync",
        ),
        (
            {"variant": "x=1"},
            "--variant: must be a value with finished runs in the study: ''; got x=1",
        ),
        (
            {"statistics": "pooled"},
            "--statistics: must be statistics that the study evaluated: own; got 'pooled'",
        ),
    ],
)
def test_options_that_do_not_fit(made, options, text):
    with pytest.raises(InputError, match=text):
        prepare(made, of_scale(), **options)


def test_folders_that_do_not_fit(made, tmp_path):
    with pytest.raises(InputError, match="must be the result of 'simshuffle train'"):
        prepare(tmp_path, of_scale())
    runs: dict[str, RunRecord | None] = {"a": record("global", GLOBAL, 1, "failed")}
    with pytest.raises(InputError, match="no run of this study has finished"):
        prepare(study(tmp_path / "failed", runs, {"a": described("global", None, 1)}), of_scale())
    broken = tmp_path / "broken"
    shutil.copytree(made, broken)
    (broken / "plans" / "ILag-Pair_s0.npz").unlink()
    with pytest.raises(InputError, match=r"plans/ILag-Pair_s0\.npz: is missing"):
        prepare(broken, of_scale())
    partial = PartialLocalShuffle(kind="partial_local_shuffle", exchange_fraction=0.3)
    old = record("ILag-Pair", partial, 0)
    del old.description["exchange"]
    with pytest.raises(InputError, match="does not say in 'exchange'"):
        prepare(
            study(tmp_path / "old", {"a": old}, {"a": described("partial", 0.3, 0)}), of_scale()
        )


# ------------------------------------------------------------------------------------- command line


def words(made: Path, folder: Path) -> list[str]:
    """Of a small comparison, with a file in the folder."""
    scenario, out = folder / "plain.yaml", folder / "out"
    scenario.write_text(of_scale().to_yaml())
    return ["study", "tta", str(made), str(scenario), "--out", str(out), "--processes", "1"]


def test_the_command_line(made, tmp_path, capsys):
    command = words(made, tmp_path)
    assert main([*command, "--target", "0.85"]) == 0
    said = capsys.readouterr()
    assert "2 simulations. 8 ranks and 160 samples as trained" in said.err
    assert "Target 85.0 %" in said.out
    assert main([*command, "--target", "0.85", "--json"]) == 0
    said = capsys.readouterr()
    assert "nothing was simulated" in said.err
    found = json.loads(said.out)
    assert [each["setting"] for each in found["settings"]] == ["global (PFS)", "ILag-Pair 0.3"]
    assert found["rule"].startswith("8 ranks")
    assert main([*command, "--set", "world_size=16"]) == 2
    assert (
        "--scale: is needed where the scales differ; got 16 ranks and 160 samples in the scenario"
        in capsys.readouterr().err
    )
    assert main([*command, "--set-study", "seeds=1"]) == 2
    assert "has no effect on a training that is done" in capsys.readouterr().err


# ------------------------------------------------------------------------- in less than a minute


def test_exchanges_that_take_long_to_replay_are_drawn_anew(tmp_path, monkeypatch):
    """The pairs of other ranks, as many samples at the same pace: epochs are as long within 2 %."""
    folder, scenario = two_strategies(tmp_path / "made"), of_scale()
    replayed = joined(folder, scenario)
    monkeypatch.setattr(simulated, "MAX_REPLAY_SECONDS", 0.0)
    drawn = joined(folder, scenario)
    times = [found.tables["settings"]["total_s"].to_numpy() for found in (replayed, drawn)]
    np.testing.assert_allclose(times[1], times[0], rtol=0.02)
    assert "strategies draw their exchanges anew: --exact replays" in drawn.meta["rule"]
    assert "exchanges anew" not in replayed.meta["rule"]
    exact = joined(folder, scenario, exact=True)
    assert (exact.tables["settings"]["total_s"] == times[0]).all()


def test_of_several_world_sizes_the_largest_is_joined_and_said(tmp_path):
    sizes = of_scale().model_copy(update={"sweep": {"world_size": [8, 16]}})
    options = TtaOptions(study=tmp_path, scenario=sizes, scale="ranks")
    more = sizes.model_copy(update={"workload": enlarged(sizes.workload)})
    join = request(options, two_strategies(tmp_path / "made"), more)
    assert join.values.scale.world_size == 16
    assert "of the sweep, 8, are left out: --set world_size=8" in join.values.scale.rule
    lines = [*first_answer(join.values)]
    assert [line.partition(":")[0] for line in lines] == [of.name for of in join.values.settings]
    other = of_scale().model_copy(update={"sweep": {"seed": [1, 2]}})
    with pytest.raises(InputError, match=r"sweep\.seed"):
        request(options, tmp_path / "made", other)


def enlarged(workload: Any) -> Any:
    """With twice as many samples."""
    dataset = workload.dataset
    more = dataset.model_copy(update={"num_samples": 2 * dataset.num_samples})
    return workload.model_copy(update={"dataset": more})


def joined(folder: Path, scenario: Scenario, **options: Any) -> Any:
    wanted = TtaOptions(study=folder, scenario=scenario, **options)
    return engine.run(STUDY, request(wanted, folder, scenario))


def test_settings_without_a_time_stand_last_of_those_that_all_or_some_seeds_reached():
    rows = pd.DataFrame(
        [("a", 3, 3, np.nan), ("b", 3, 3, 2.0), ("c", 2, 3, 1.0), ("d", 3, 3, 1.0),
         ("e", 0, 3, 0.5), ("f", 1, 3, np.nan), ("g", 1, 3, 0.5)],
        columns=["setting", "reached", "n", "time_s"],
    )  # fmt: skip
    assert [row["setting"] for row in _sort_reaching_rows(rows)] == list("dbagcf")
