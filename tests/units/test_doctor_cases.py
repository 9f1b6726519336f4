"""Generated trainings of benchmarks/doctor_cases: scripts run, truth and tables are complete."""

import ast
import csv
import runpy
from dataclasses import asdict, replace

import pytest

from benchmarks.doctor_cases import __main__ as command
from benchmarks.doctor_cases import judge, table
from benchmarks.doctor_cases.case import draw_case
from benchmarks.doctor_cases.causes import CAUSES, MAPPED, budget_us_of, step_us
from benchmarks.doctor_cases.judge import HEALTHY, Row, ScriptRunner, Stopwatch, running_store

DRAWN = [draw_case(0, number) for number in range(600)]
KEYS = [cause.key for cause in CAUSES]


def single(key):
    """The first drawn case that has this cause alone."""
    return next(case for case in DRAWN if [cause.key for cause in case.diseases] == [key])


@pytest.fixture(scope="module")
def runner():
    pytest.importorskip("torch")
    with ScriptRunner() as process:
        yield process


# ------------------------------------------------------------------------------------ the generator


def test_a_seed_gives_one_script_and_other_numbers_give_others():
    again = [draw_case(0, number) for number in range(30)]
    assert [case.sick.text for case in again] == [case.sick.text for case in DRAWN[:30]]
    assert len({case.sick.text for case in again}) == 30
    assert draw_case(1, 0).sick.text != draw_case(0, 0).sick.text


def test_all_causes_are_drawn_and_a_quarter_is_healthy():
    first = DRAWN[:200]
    assert {cause.name for case in first for cause in case.diseases} == {c.name for c in CAUSES}
    assert sum(not case.diseases for case in first) >= 50
    decoys = [case for case in DRAWN if case.is_decoy and case.causes]
    assert len(decoys) > 50
    assert all(cause.name != "workers" for case in decoys for cause in case.causes)
    assert sum(len(case.diseases) == 2 for case in first) >= 20


def test_scripts_compile_and_only_sick_ones_have_guilty_lines():
    for case in DRAWN[:200]:
        names = {cause.name for cause in case.diseases}
        assert set(case.sick.guilty) == names
        lines = case.sick.text.splitlines()
        ast.parse(case.sick.text)
        assert "#!" not in case.sick.text
        for rows in case.sick.guilty.values():
            assert all(lines[row - 1].strip() for row in rows)
        for name, script in case.mended_scripts().items():
            ast.parse(script.text)
            alone = {"mended": set(), "one_worker": names}
            first, *others = [cause.name for cause in case.causes]
            expected = alone | {"mended_first": set(others), "mended_second": {first}}
            assert set(script.guilty) == expected[name]


@pytest.mark.parametrize("key", KEYS)
def test_the_scripts_of_each_cause_run(key, tmp_path, runner):
    case = single(key)
    if case.setting.kind == "images":
        pytest.importorskip("PIL")
    case.write(tmp_path)
    runpy.run_path(str(tmp_path / "prepare.py"))
    watch = Stopwatch(runner, tmp_path, case.setting.steps_of_epoch)
    with running_store(tmp_path):
        for name in ("train", *case.mended_scripts()):
            assert len(watch.step_times(name, 3, 60.0, replay=False)) == 3
        assert len(watch.step_times("train", 12, 60.0, replay=True)) == 12


def test_every_kind_of_data_is_run():
    kinds = {single(key).setting.kind for key in KEYS}
    assert kinds == {*MAPPED, "remote", "shards"}


def test_a_budget_is_the_strength_of_the_loop_behind_steps():
    setting = replace(DRAWN[0].setting, workers=2)
    causes = {cause.hides: cause for cause in CAUSES}
    step = step_us(setting)
    assert budget_us_of(causes["never"], setting, 0.5) == pytest.approx(step)
    assert budget_us_of(causes["one"], setting, 0.5) == pytest.approx(2 * step)
    assert budget_us_of(causes["cores"], setting, 0.5) == pytest.approx(4 * step)
    assert budget_us_of(causes["wholly"], setting, 0.5) == pytest.approx(step * 0.75)
    alone = replace(setting, workers=0)
    assert budget_us_of(causes["cores"], alone, 0.75) == pytest.approx(3 * step_us(alone))


def test_a_script_that_fails_says_why(tmp_path, runner):
    (tmp_path / "train.py").write_text("raise ValueError('no data')")
    with pytest.raises(RuntimeError, match="ValueError: no data"):
        Stopwatch(runner, tmp_path, 12).step_times("train", 3, 9.0, replay=False)


# ------------------------------------------------------------------------------------ the truth


class FixedTimes:
    """A stopwatch whose scripts take as long as a table says."""

    def __init__(self, **seconds):
        self.seconds = seconds

    def seconds_per_step(self, name, *, replay=False):
        return self.seconds["replay" if replay else name]


def row_of(case, **seconds):
    row = Row(0, case.number)
    judge.measure_truth(row, case, FixedTimes(**seconds))
    return row


def test_the_truth_of_two_causes_is_both_with_their_shares():
    case = next(case for case in DRAWN if len(case.diseases) == 2 and case.setting.workers)
    first, second = (cause.name for cause in case.causes)
    times = {"train": 1.0, "mended": 0.3, "mended_first": 0.8, "mended_second": 0.5}
    row = row_of(case, **times)
    assert (row.truth_first, row.truth_second) == (second, first)
    # alone 0.5 and last 0.5; alone 0.2 and last 0.2
    assert (row.share_first, row.share_second) == pytest.approx((0.5, 0.2))
    assert row.measured_gain == pytest.approx(0.5)
    assert row.is_settled == 1
    row = row_of(case, **times | {"mended_first": 0.9, "mended": 0.5})
    assert (row.truth_first, row.truth_second) == (second, "")


def test_a_cause_that_gains_less_than_15_percent_is_healthy():
    case = single("collate")
    row = row_of(case, train=1.0, mended=0.9, one_worker=0.9, replay=0.88)
    assert (row.truth_first, row.measured_gain, row.is_settled) == (HEALTHY, 0.0, 1)
    assert (row.replay_gain, row.mended_gain) == pytest.approx((0.12, 0.1))
    assert row_of(case, train=1.0, mended=0.9, one_worker=0.9, replay=0.5).is_settled == 0
    assert row_of(case, train=1.0, mended=0.8, one_worker=0.9).truth_first == "collate"


def test_a_healthy_script_is_held_against_batches_that_are_played_again():
    case = next(case for case in DRAWN if not case.diseases)
    row = row_of(case, train=1.0, replay=0.9)
    assert (row.truth_first, row.is_settled) == (HEALTHY, 1)
    assert row.replay_gain == pytest.approx(0.1)


def test_a_gain_within_noise_is_not_settled():
    class Swinging(FixedTimes):
        turn = 0

        def seconds_per_step(self, name, *, replay=False):
            self.turn += name == "mended"
            return 1.0 if name != "mended" else 0.6 + 0.4 * (self.turn % 2)

    row = Row(0, 0)
    judge.measure_truth(row, single("cores"), Swinging())
    assert row.gain_noise == pytest.approx(0.2)
    assert row.is_settled == 0


# ------------------------------------------------------------------------------------ what is said


def diagnosis(**changes):
    cause = {
        "name": "collate",
        "share": 0.6,
        "confidence": 0.9,
        "evidence": 0.8,
        "sentence": "Most is in collate (train.py:7).",
    }
    remedy = {"cause": "collate", "share": 0.5, "gain_s": 0.01, "low": 0.008, "high": 0.012}
    return {"causes": [cause | changes], "remedies": [remedy], "verdict": "collate."}


def test_a_diagnosis_is_read():
    row = Row(0, 0)
    judge.read_diagnosis(row, diagnosis())
    assert (row.named_first, row.confidence, row.named_line) == ("collate", 0.9, "train.py:7")
    assert row.evidence == 0.8
    gains = (row.predicted_low, row.predicted_gain, row.predicted_high)
    assert gains == pytest.approx((0.4, 0.5, 0.6))
    judge.read_diagnosis(row, diagnosis(confidence="sure (19 of 20 such cases)"))
    assert row.confidence == 0.95


@pytest.mark.parametrize("said", [diagnosis(share=0.1), {"causes": [], "remedies": []}])
def test_less_than_15_percent_is_called_healthy(said):
    row = Row(0, 0)
    judge.read_diagnosis(row, said)
    assert row.named_first == HEALTHY


def test_measured_columns_are_taken_from_a_row_measured_before(monkeypatch):
    case = single("collate")
    (line, *_) = case.sick.guilty["collate"]
    said = diagnosis(sentence=f"In collate (train.py:{line}).")
    monkeypatch.setattr(judge, "run_doctor", lambda folder: (said, 2.0))
    before = Row(0, 1, truth_first="collate", share_first=0.4, measured_gain=0.4, is_settled=0)
    row = judge.judge_case(case, None, {key: str(value) for key, value in asdict(before).items()})
    assert (row.error, row.truth_first, row.share_first) == ("", "collate", 0.4)
    assert (row.measured_gain, row.is_settled, row.doctor_s) == (0.4, 0, 2.0)
    assert row.is_line_right == "yes"


def test_only_the_line_that_was_made_guilty_is_right():
    case = single("collate")
    (line, *_) = case.sick.guilty["collate"]
    row = Row(0, 0, truth_first="collate", named_first="collate", named_line=f"train.py:{line}")
    judge.settle(row, case)
    assert row.is_line_right == "yes"
    row.named_line = "train.py:1"
    judge.settle(row, case)
    assert row.is_line_right == "no"


# ------------------------------------------------------------------------------------ the tables


def judged(**columns):
    return {name: str(value) for name, value in asdict(Row(0, 0, **columns)).items()}


SICK = {"truth_first": "collate", "named_first": "collate", "confidence": 0.97}
ROWS = [
    judged(**SICK, measured_gain=0.5, predicted_gain=0.4, is_line_right="yes", drawn="collate"),
    judged(**SICK, measured_gain=0.5, predicted_gain=0.2, predicted_high=0.6, drawn="collate"),
    judged(**SICK | {"named_first": "workers"}, worker_gain=0.3, drawn="collate"),
    judged(named_first=HEALTHY, confidence=0.6),
    judged(named_first="opens", confidence=0.97, is_settled=0),
    judged(error="RuntimeError: none"),
]


def test_tables_count_names_gains_and_confidence():
    text = table.text_of(ROWS)
    for line in (
        "- cases: 6, of which 1 failed",
        "- first name is a true cause: 2 of 3 (67%); the strongest: 2 of 3 (67%)",
        "- the same, where a first worker that gains 15 % counts too: 3 of 3 (100%)",
        "beyond noise: 3 of 4 (75%)",
        "- line right, where the cause is: 1 of 1 (100%)",
        "| collate | 2 |  | 1 |  |",
        "| healthy |  | 1 |  | 1 |",
        "| 0.50 to 0.70 | 1 | 0.60 | 100% |",
        "| 0.95 to 1.00 | 4 | 0.97 | 50% |",
        "within 15 points: 1 of 2 (50%); inside the interval: 1 of 2 (50%); either: 2 of 2 (100%)",
    ):
        assert line in text


def test_outcomes_are_those_whose_truth_is_beyond_noise(tmp_path):
    command.write_outcomes(ROWS, tmp_path / "outcomes.csv")
    lines = (tmp_path / "outcomes.csv").read_text().splitlines()
    assert lines == [
        *("named,evidence,put_in", "collate,1.0,collate", "collate,1.0,collate"),
        *("workers,1.0,collate", ",1.0,"),
    ]


def test_a_healthy_verdict_counts_where_noise_is_small_whatever_a_worker_slows(tmp_path):
    rows = [
        judged(named_first=HEALTHY, is_settled=0, gain_noise=noise, truth_first=truth)
        for noise, truth in ((0.05, HEALTHY), (0.05, "gil"), (0.2, HEALTHY))
    ]
    command.write_outcomes(rows, tmp_path / "outcomes.csv")
    assert (tmp_path / "outcomes.csv").read_text().splitlines()[1:] == [",1.0,", ",1.0,gil"]


def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    path = tmp_path / "cases.csv"
    numbers = []

    truth = {("3", "1"): {"truth_first": "collate"}}

    def judge_case(case, _, before):
        numbers.append(case.number)
        assert (before is not None) == (case.number == 1)
        return Row(case.seed, case.number)

    monkeypatch.setattr(command, "judge_case", judge_case)
    command.judge_cases(3, 2, path, None, truth)
    command.judge_cases(3, 4, path, None, truth)
    assert numbers == [0, 1, 2, 3]
    with path.open(encoding="utf-8", newline="") as file:
        assert [row["number"] for row in csv.DictReader(file)] == ["0", "1", "2", "3"]
