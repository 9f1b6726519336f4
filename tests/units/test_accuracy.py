"""From stored runs to tables, intervals, report and figures; and the files in between, whole or
damaged. Nothing is trained here."""

import json
import math
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.studies.training.figures import figures
from simshuffle.studies.training.study import STUDY
from simshuffle.studies.training.summary import estimate, holm, summary
from simshuffle.studies.training.tables import (
    PLANS,
    STATISTICS,
    TABLES,
    TrainingTables,
    collect_tables,
    run_outcome,
)
from simshuffle.studies.training.text import details, parts
from simshuffle.studies.training.wording import join_report
from simshuffle.study import engine
from simshuffle.study.cell import Outcome
from simshuffle.study.store import TABLE, Disk
from simshuffle.workload.exchange import empty_plan
from simshuffle.workload.exchange.recording import RecordedPlans, read_plans, write_plans
from tests.drawn import laid_out
from tests.trained import description, record, recorded, saved

# --------------------------------------------------------------------------------------- statistics


def test_the_interval_of_three_values_by_hand():
    # mean 2, s = 1, t(0.975; 2) = 4.302653: the reach is 4.302653 / sqrt(3) = 2.484138
    found = estimate([1.0, 2.0, 3.0])
    assert (found.n, found.mean) == (3, 2.0)
    assert found.low == pytest.approx(2 - 2.484138, abs=1e-5)
    assert found.high == pytest.approx(2 + 2.484138, abs=1e-5)
    # t = 2 / (1 / sqrt(3)) = 3.4641; Student's distribution of 2 degrees has P(|T| > t) = 1 - t /
    # sqrt(t^2 + 2)
    assert found.p == pytest.approx(1 - 3.4641016 / math.sqrt(3.4641016**2 + 2), rel=1e-6)


@pytest.mark.parametrize("n", [2, 5, 20])
def test_intervals_and_paired_tests_are_those_of_scipy(n):
    rng = np.random.default_rng(n)
    one, other = rng.normal(0.8, 0.02, n), rng.normal(0.79, 0.02, n)
    found = estimate(list(one - other))
    expected = stats.ttest_rel(one, other)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-9)
    low, high = expected.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9)


def test_one_value_has_no_interval_and_equal_values_need_none():
    single = estimate([0.5])
    assert single.mean == 0.5
    assert all(math.isnan(value) for value in (single.low, single.high, single.p))
    assert math.isnan(estimate([]).mean)
    same = estimate([0.1, 0.1, 0.1])
    assert (same.low, same.high, same.p) == (same.mean, same.mean, 0.0)
    assert estimate([0.0, 0.0]).p == 1.0


def test_the_interval_holds_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    inside = sum(
        found.low <= 1.0 <= found.high
        for found in (estimate(list(rng.normal(1.0, 2.0, 5))) for _ in range(2000))
    )
    assert inside / 2000 == pytest.approx(0.95, abs=3 * math.sqrt(0.95 * 0.05 / 2000))


def test_holm_by_hand():
    # sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1 = 0.04, 0.06, 0.06, 0.04; none below the one
    # before it
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([math.nan, 0.02]) == pytest.approx([math.nan, 0.02], nan_ok=True)


# -------------------------------------------------------------------------------------------- plans


def same_plans(one, other):
    pairs = [(one.owner, other.owner)]
    for mine, its in zip(one.plans, other.plans, strict=True):
        pairs += [
            (getattr(mine, name), getattr(its, name))
            for name in ("sample", "target", "iteration", "message")
        ]
    return all(a.shape == b.shape and a.dtype == b.dtype and (a == b).all() for a, b in pairs)


@pytest.mark.parametrize(
    "plans",
    [
        recorded(),
        recorded(300, 1000),
        recorded(3, 70_000, 1.0, 2),
        recorded(fraction=0.0),
        recorded(epochs=0),
    ],
)
def test_plans_come_back_to_the_last_sample(plans, tmp_path):
    write_plans(tmp_path / "plans.npz", plans)
    assert same_plans(plans, read_plans(tmp_path / "plans.npz"))


def test_epochs_without_exchange_between_others_come_back(tmp_path):
    some = recorded(4, 40)
    plans = RecordedPlans(some.owner, [empty_plan(4), some.plans[0], empty_plan(4)])
    write_plans(tmp_path / "plans.npz", plans)
    found = read_plans(tmp_path / "plans.npz")
    assert [len(plan.iteration) for plan in found.plans] == [0, len(some.plans[0].iteration), 0]
    assert (found.plans[1].target == some.plans[0].target).all()


def test_plans_are_compact(tmp_path):
    plans = recorded(256, 4096, 0.5, 4)
    write_plans(tmp_path / "plans.npz", plans)
    moved = sum(plan.sample.size for plan in plans.plans)
    # two bytes for the sample, not much over one for the rank
    assert (tmp_path / "plans.npz").stat().st_size < 4 * moved


@pytest.mark.parametrize("damage", ["cut", "flipped", "text", "missing", "other"])
def test_damaged_plans_are_an_error_in_words(damage, tmp_path):
    path = tmp_path / "plans.npz"
    write_plans(path, recorded())
    data = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        data[len(data) // 3] ^= 0xFF
        path.write_bytes(data)
    elif damage == "text":
        path.write_text("no plans")
    elif damage == "missing":
        path.unlink()
    else:
        np.savez_compressed(path, format=np.array([99]))
    with pytest.raises(InputError, match="cannot be read as recorded plans") as caught:
        read_plans(path)
    assert str(path) in str(caught.value)


# --------------------------------------------------------------------------------------------- runs


def test_a_run_comes_back(tmp_path):
    made, store = record(0.8, plans=recorded()), Disk(tmp_path)
    store.add("ab" * 16, run_outcome(made))
    found = store.get("ab" * 16, frozenset([*(f"{name}{TABLE}" for name in TABLES), PLANS]))
    for name in TABLES:
        pd.testing.assert_frame_equal(found.tables[name], getattr(made, name))
    assert found.values == {
        "description": made.description,
        "status": "done",
        "message": "",
        "seconds": 2.0,
    }
    assert same_plans(read_plans(found.files[PLANS]), made.plans)


def test_losses_that_no_float_holds_are_left_out():
    made = record(0.8)
    made.epochs.loc[1:, "own_loss"] = [np.inf, 1e200]
    tables = collect_tables({"one": description("global", 4, 0)}, {"one": run_outcome(made)})
    assert tables.epochs["own_loss"].isna().tolist() == [False, True, True]
    assert tables.runs["own_loss"].isna().all()


def test_the_best_epoch_is_kept_apart_from_the_last():
    made = record(0.8, epochs=4)
    made.epochs["own_accuracy"] = [0.5, 0.9, math.nan, 0.7]
    made.epochs["rank0_accuracy"] = [0.6, 0.6, math.nan, 0.6]
    made.epochs["pooled_accuracy"] = math.nan
    failed = record(0.9, status="failed", message="no", epochs=1)
    outcomes = {"one": run_outcome(made), "two": run_outcome(failed)}
    runs = collect_tables({name: description("global", 4, 0) for name in outcomes}, outcomes).runs
    row = runs.iloc[0]
    assert (row["own_accuracy"], row["own_best_accuracy"], row["own_best_epoch"]) == (0.7, 0.9, 2)
    assert (row["rank0_best_accuracy"], row["rank0_best_epoch"]) == (0.6, 1)  # the first of equals
    assert math.isnan(row["pooled_best_accuracy"])
    assert runs.iloc[1][["own_accuracy", "own_best_accuracy", "own_best_epoch"]].isna().all()


def test_summary_and_report_have_both_and_compare_the_last():
    records = {f"global{seed}": record(0.8) for seed in (0, 1)}
    for seed, best in ((0, 0.9), (1, 0.8)):
        records[f"local{seed}"] = record(0.7)
        records[f"local{seed}"].epochs.loc[1, "own_accuracy"] = best
    described = {
        name: description(name[:-1], 4, int(name[-1]), 0.0 if "local" in name else None)
        for name in records
    }
    tables = collect_tables(described, {name: run_outcome(of) for name, of in records.items()})
    rows = summary(tables.runs).query("statistics == 'own'").set_index("strategy")
    local = rows.loc["local"]
    assert local["accuracy"] == pytest.approx(0.7)
    best = estimate([0.9, 0.8])
    assert (local["best_accuracy"], local["best_low"], local["best_high"]) == pytest.approx(
        (best.mean, best.low, best.high)
    )
    assert local["global_difference"] == pytest.approx(-0.1)
    text = join_report(parts(tables, {"study": "both"}))
    assert re.search(r"last epoch +best", text)
    assert re.search(r"local +70\.0 ± 0\.0 +85\.0 ± 63\.5 +-10\.0", text)


def test_a_figure_says_what_was_trained_and_which_accuracy_it_shows(study):
    for name, when in (("world_size", "after the last epoch"), ("epoch", "after each epoch")):
        figure = laid_out(figures(tables_of(study))[f"accuracy_{name}"])
        assert figure.legends[0].get_title().get_text() == "mlp on procedural"
        assert figure.get_supylabel().replace("\n", " ") == f"test accuracy {when} (%)"


# -------------------------------------------------------------------------------------------- study

LOCAL_GAPS = {16: 0.0, 256: -0.03, 1024: -0.15}


def invented(seeds=5):
    """A study as one could come out: local loses with M, partial closes the gap with Q, IS-Pair is
    worse at large Q. Its records and descriptions by run."""
    rng = np.random.default_rng(3)
    records, descriptions = {}, {}

    def add(strategy, world_size, gap, fraction=None, norm="per_rank"):
        for seed in range(seeds):
            name = f"{strategy}{'' if fraction is None else fraction}_M{world_size}_{norm}_s{seed}"
            descriptions[name] = description(strategy, world_size, seed, fraction, norm)
            accuracy = 0.8 + 0.01 * seed + gap + rng.normal(0, 0.002)
            lower = gap / 2 if strategy == "local" else 0.0
            records[name] = record(accuracy, plans=recorded(), lower=lower)

    for norm in ("per_rank", "none"):
        for world_size, gap in LOCAL_GAPS.items():
            add("global", world_size, 0.0, norm=norm)
            add("local", world_size, gap if norm == "per_rank" else 0.0, 0.0, norm)
    for fraction, gap in {0.1: -0.08, 0.3: -0.03, 0.7: -0.005}.items():
        add("partial", 1024, gap, fraction)
        add("IS", 1024, gap, fraction)
        add("IS-Pair", 1024, gap - 0.04 * fraction, fraction)
        add("ILag-Pair", 1024, gap, fraction)
    return records, descriptions


def tables_of(folder):
    return TrainingTables(**engine.read(STUDY, folder).tables)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A finished study."""
    return saved(tmp_path_factory.mktemp("study") / "mine", "invented", *invented())


def at_1024(table, strategy):
    """The rows of a strategy on 1024 ranks with batch norm per rank."""
    norm_and_size = (table["batch_norm"] == "per_rank") & (table["world_size"] == 1024)
    return table[norm_and_size & (table["strategy"] == strategy)]


def test_the_summary_pairs_runs_of_one_seed(study):
    tables = tables_of(study)
    row = at_1024(summary(tables.runs), "local")
    own = row[row["statistics"] == "own"].iloc[0]

    one, other = (
        at_1024(tables.runs, strategy).sort_values("seed")["own_accuracy"].to_numpy()
        for strategy in ("local", "global")
    )
    expected = stats.ttest_rel(one, other)
    assert own["seeds"] == own["global_pairs"] == 5
    assert own["accuracy"] == pytest.approx(one.mean())
    assert own["global_difference"] == pytest.approx((one - other).mean())
    assert own["global_p"] == pytest.approx(expected.pvalue)
    # pairing takes the seeds' own differences out: the interval is narrower than that of the mean
    assert own["global_high"] - own["global_low"] < (own["high"] - own["low"]) / 2
    assert set(row["statistics"]) == set(STATISTICS)
    pooled = row[row["statistics"] == "pooled"].iloc[0]
    assert pooled["global_difference"] == pytest.approx(-0.075, abs=0.005)


def test_importance_strategies_are_compared_with_partial_at_the_same_fraction(study):
    table = summary(tables_of(study).runs)
    own = table[table["statistics"] == "own"]
    assert set(own[own["partial_pairs"] > 0]["strategy"]) == {"IS", "IS-Pair", "ILag-Pair"}
    pair = own[(own["strategy"] == "IS-Pair") & (own["exchange_fraction"] == 0.7)].iloc[0]
    assert pair["partial_difference"] == pytest.approx(-0.028, abs=0.006)
    family = own["partial_p"].dropna().tolist()
    assert own["partial_p_holm"].dropna().tolist() == pytest.approx(holm(family))
    assert len(family) == 9


def test_failed_runs_are_left_out_of_means_and_named():
    records, descriptions = invented(seeds=3)
    bad = "local0.0_M1024_per_rank_s1"
    records[bad] = record(
        0.9, status="failed", message="the loss is not finite in epoch 2", epochs=1
    )
    outcomes = {name: run_outcome(of) for name, of in records.items()}
    outcomes["IS0.1_M1024_per_rank_s0"] = Outcome(lost="its process was killed by signal 9")
    tables = collect_tables(descriptions, outcomes)
    row = at_1024(summary(tables.runs), "local").iloc[0]
    assert row["seeds"] == row["global_pairs"] == 2
    accuracy = tables.runs.set_index("run")["own_accuracy"]
    pairs = [
        accuracy[f"local0.0_M1024_per_rank_s{seed}"] - accuracy[f"global_M1024_per_rank_s{seed}"]
        for seed in (0, 2)
    ]
    assert row["global_difference"] == pytest.approx(sum(pairs) / 2, abs=1e-12)
    text = " ".join(join_report(parts(tables, {"study": "invented", "description": ""})).split())
    assert f"{bad}: the loss is not finite in epoch 2" in text
    assert "its process was killed by signal 9" in text


def test_the_report_says_what_was_found_and_what_was_not(study):
    text = " ".join((study / "report.txt").read_text().split())
    assert "Holm" in text
    assert "Batch norm per rank: local shuffle is below global shuffle at M = 256 (-" in text
    assert "no difference between the two is found at M = 16 (" in text
    assert "No batch norm: no difference between the two is found at M = 16 (" in text
    assert (
        "Batch norm per rank, M = 1024: partial local shuffle changes local shuffle's gap from -1"
        in text
    )
    verdict = text[text.index("Of these 9 comparisons") : text.index("half widths")]
    assert "better: " not in verdict
    assert "IS-Pair 0.7 at M = 1024" in verdict
    assert "rank0: statistics of rank 0" in text


def test_a_study_without_anything_to_compare_still_has_a_report():
    tables = collect_tables({"one": description("global", 4, 0)}, {"one": run_outcome(record(0.7))})
    assert "1 runs: 1 done" in join_report(parts(tables, {"study": "single"}))
    assert figures(tables) == {}


def test_the_report_names_momentum_and_mode_of_the_pass():
    tables = collect_tables({"one": description("global", 4, 0)}, {"one": run_outcome(record(0.7))})
    assert "momentum" not in join_report(details(tables, {"study": "old", "runs": {"one": {}}}))
    runs = {
        "one": {"statistics_momentum": 0.1, "importance_pass": ""},
        "two": {"statistics_momentum": 0.03, "importance_pass": "train"},
    }
    text = " ".join(join_report(details(tables, {"study": "new", "runs": runs})).split())
    assert "of each batch with momentum 0.03 or 0.1." in text
    assert "in train mode it refreshes these statistics from the old shard." in text


def test_a_report_on_networks_with_batch_norm_and_without_says_where_n_is_absent():
    both = {
        norm: description("global", 4, 0) | {"batch_norm": norm} for norm in ("per_rank", "absent")
    }
    said = "A network without batch norm has no running statistics: there is no n"
    for norms in (["per_rank"], ["absent"], ["per_rank", "absent"]):
        of = {norm: both[norm] for norm in norms}
        tables = collect_tables(of, {norm: run_outcome(record(0.7)) for norm in norms})
        text = " ".join(join_report(details(tables, {"study": "mixed"})).split())
        assert (said in text) == (len(norms) == 2)


def test_a_study_of_which_runs_are_missing_says_so(tmp_path, capsys):
    records, descriptions = invented(seeds=3)
    for name in list(records)[::2]:
        del records[name]
    folder = saved(tmp_path / "part", "invented", records, descriptions)
    told = f"UNFINISHED: {len(descriptions) - len(records)} of {len(descriptions)} runs are missing"
    assert told in (folder / "report.txt").read_text()
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | {"state": "unfinished"}))
    (folder / "accuracy_world_size.png").unlink()
    assert main(["results", "plot", str(folder)]) == 0
    assert "unfinished: the figures show what is there" in capsys.readouterr().err
    assert (folder / "accuracy_world_size.png").is_file()


def test_plans_lie_beside_the_tables_under_the_names_of_their_runs(study):
    meta = json.loads((study / "meta.json").read_text())
    names = {path.stem for path in (study / "plans").iterdir()}
    assert names == set(meta["runs"])
    assert meta["files"] == {"plans": len(names), "timelines": 0}
    assert same_plans(read_plans(study / "plans" / f"{min(names)}.npz"), recorded())
