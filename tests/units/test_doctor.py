"""The verb doctor: a script is recorded as it is, examined, tried; and what is wrong with it."""

import json
import os
import re
import shlex
import signal
import sys
import threading
import time
from contextlib import suppress

import pytest

from simshuffle.cli import main
from simshuffle.extensions.doctor import running, trying
from simshuffle.extensions.doctor.command import _default
from simshuffle.extensions.doctor.predicting import predict
from simshuffle.extensions.doctor.records.reading import read
from tests.doctored import TRAINING
from tests.recorded import Training


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working directory, with a script that is recorded as a training is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "POLL_S", 0.02)
    monkeypatch.setattr(running, "GRACE", 0.5)
    (tmp_path / "train.py").write_text(TRAINING)
    return tmp_path


def left(folder):
    """What is below results."""
    return sorted(path.name for path in (folder / "results").glob("*"))


def doctor(*words, status=0):
    assert main(["doctor", *words]) == status


TRAIN = (sys.executable, "train.py", "--lr", "0.1")


# ------------------------------------------------------------------------------- recorded


def test_a_script_is_recorded_and_shown_again_as_it_was(folder, capfd):
    doctor("--", *TRAIN)
    shown, told = capfd.readouterr()
    assert told == "trained ['--lr', '0.1']\n"  # its own options, and nothing else is said
    assert re.search(r"(50|49)\S* % of the loop's \S+ s are waits for data", shown)
    assert re.search(r"A batch takes 20\d ms: .*waiting for data (50|49) %", shown)
    assert "4 workers, not 2: 50 %" in shown
    assert left(folder) == ["doctor-train"]
    names = ["diagnosis.json", "doctor.pdf", "doctor.png", "meta.json", "record.parquet"]
    assert sorted(path.name for path in (folder / "results/doctor-train").iterdir()) == names
    found, _, last = shown.partition("Tables: ")
    assert last.startswith("results/doctor-train\nFigure: results/doctor-train/doctor.png and ")
    about = read(folder / "results/doctor-train").about
    assert about["command"] == [*TRAIN]
    assert about["exit_status"] == 0
    for place in ("results/doctor-train", "doctor-train", "results/doctor-train/record.parquet"):
        doctor(place)
        assert capfd.readouterr().out == found


def test_a_record_is_written_only_where_that_is_asked(folder, capfd):
    doctor("-q", "--", *TRAIN)
    doctor("doctor-train", "--out", "again")
    assert (folder / "again" / "record.parquet").is_file()
    assert left(folder) == ["doctor-train"]


def test_json_is_all_of_standard_output(folder, capfd):
    (folder / "loud.py").write_text(TRAINING.replace(", file=sys.stderr", ""))
    doctor("--json", "--", sys.executable, "loud.py")
    shown, told = capfd.readouterr()
    assert "trained" in told
    found = json.loads(shown)
    assert found["diagnosis"]["causes"][0]["name"] == "decode"
    assert found["tries"] == []
    doctor("--to", "markdown", "doctor-loud")
    assert "| waiting for data |" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --lr 0.1", "train"),
        ("python -m my.package.finetune", "finetune"),
        ("torchrun --nproc-per-node 2 code/train.py", "train"),
        ("accelerate launch train.py", "train"),
        ("sh run.sh", "run"),
        ("./venv/bin/python", "python"),
        ("python 'my train.py'", "my-train"),
    ],
)
def test_the_folder_is_named_after_the_script(command, name):
    assert str(_default(shlex.split(command))) == f"results/doctor-{name}"


# ------------------------------------------------------------------------------- tried


def test_remedies_are_tried_beside_the_script_as_it_is(folder, capfd):
    doctor("--try", "1", "--", *TRAIN)
    shown, told = capfd.readouterr()
    assert "up to 3 times more, each for 60 s of steps. It may overwrite what it wrote." in told
    assert "The script runs 3 times more, about 3 min in all." in told
    assert re.findall(r"Trying: (.*)\.\n", told) == [
        trying.UNCHANGED,
        "4 workers, not 2",
        trying.BOUND,
    ]
    # 0.2 s a batch are 0.1 s with 4 workers, and with none that waits
    assert re.search(r"4 workers, not 2 +(50|49)\.\d % .* 50\.0 % +50\.0 to 50\.0 %", shown)
    assert re.search(r"\(bound\) +50\.0 %", shown)
    doctor("doctor-train")
    assert capfd.readouterr().out == shown.partition("Tables: ")[0]


def test_a_try_that_fails_says_why_and_the_others_go_on(folder, capfd):
    fails = 'sys.exit("no memory") if "loader" in changes else None\n'
    (folder / "train.py").write_text(TRAINING.replace("rows = pathlib", f"{fails}rows = pathlib"))
    doctor("--try", "1", "--", *TRAIN)
    shown = capfd.readouterr().out
    assert "Not measured: 4 workers, not 2: the script ended with status 1." in shown
    assert re.search(r"\(bound\) +50\.0 %", shown)


def test_a_script_that_runs_only_once_is_not_tried(folder, capfd):
    once = 'if pathlib.Path("mark").exists():\n    sys.exit(5)\npathlib.Path("mark").touch()\n'
    (folder / "train.py").write_text(TRAINING.replace("rows = pathlib", f"{once}rows = pathlib"))
    doctor("--try", "1", "--", *TRAIN)
    shown, told = capfd.readouterr()
    assert "Nothing is tried: the script ended with status 5." in told
    assert "Tables: results/doctor-train" in shown


def test_what_is_predicted_is_shown_and_its_scenarios_are_kept(folder, capfd):
    doctor("--on", "small-fat-tree", "--ranks", "1", "--", *TRAIN)
    shown = capfd.readouterr().out
    assert "This training on small-fat-tree" in shown
    names = sorted(path.name for path in (folder / "results/doctor-train/scenarios").iterdir())
    assert len(names) == 1
    assert main(["check", f"results/doctor-train/scenarios/{names[0]}"]) == 0
    doctor("--force", "-q", "--", *TRAIN)
    assert not (folder / "results/doctor-train/scenarios").exists()


def test_records_of_one_and_two_ranks_predict_four_on_their_own_host(folder, capfd):
    alike = Training(samples=64, batch=8, step=(10e-3, 1e-3), latency=1e-3, nbytes=10_000)
    for ranks in (1, 2):
        alike.record(ranks).write(folder / f"{ranks}.parquet")
    doctor("1.parquet", "2.parquet", "--ranks", "4", "--json")
    found = json.loads(capfd.readouterr().out)["prediction"]
    expected = predict([read(folder / "1.parquet"), read(folder / "2.parquet")], None, [4])
    assert found == expected.as_json()
    assert "1 and 2" in expected.verdict


def test_a_machine_that_is_too_small_takes_no_result_away(folder, capfd):
    doctor("--on", "small-fat-tree", "--ranks", "100000", "--", *TRAIN, status=2)
    shown, told = capfd.readouterr()
    assert "4 workers" in shown
    assert left(folder) == ["doctor-train"]
    assert "What was recorded is kept" not in told


# ------------------------------------------------------------------------------- a script that ends


def test_a_script_that_fails_keeps_what_was_recorded(folder, capfd):
    (folder / "train.py").write_text(f"{TRAINING}\nraise SystemExit(7)")
    doctor("--", *TRAIN, status=7)
    shown, told = capfd.readouterr()
    assert "The script ended with status 7." in told
    assert "4 workers" in shown
    assert read(folder / "results/doctor-train").about["exit_status"] == 7


def test_a_script_that_fails_before_its_first_batch_has_its_own_error_alone(folder, capfd):
    doctor("--", sys.executable, "-c", "raise ValueError('mine')", status=1)
    shown, told = capfd.readouterr()
    assert shown == ""
    assert told.splitlines()[-3:] == [
        "ValueError: mine",
        "The script ended with status 1.",
        "No batch was recorded before that.",
    ]
    assert left(folder) == []


def test_an_interrupt_ends_the_script_and_not_the_diagnosis(folder, capfd):
    waits = "import time\nrows.joinpath('begun').touch()\ntime.sleep(60)\n"
    (folder / "train.py").write_text(TRAINING + waits)

    def interrupt():
        until = time.monotonic() + 60
        while not list(folder.glob("results/.*/rows/begun")) and time.monotonic() < until:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    doctor("--try", "3", "--", *TRAIN, status=130)
    thread.join()
    shown, told = capfd.readouterr()
    assert "Interrupted: waiting for the script." in told
    assert "KeyboardInterrupt" in told  # as it would without us
    assert "nothing was written" not in told
    assert "Tables: results/doctor-train" in shown
    assert "Trying" not in told


def test_what_was_recorded_stays_where_the_rest_breaks(folder, capfd, monkeypatch):
    def breaks(_):
        raise MemoryError

    monkeypatch.setattr("simshuffle.extensions.doctor.diagnosis.diagnose", breaks)
    with suppress(MemoryError):
        main(["doctor", "--", *TRAIN])
    told = capfd.readouterr().err
    (kept,) = re.findall(r"What was recorded is kept: simshuffle doctor (\S+) reads it", told)
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    doctor(kept)
    assert "4 workers" in capfd.readouterr().out


# ------------------------------------------------------------------------------- bad input


def test_a_program_that_loads_no_recorder_is_refused(folder, capfd):
    doctor("--", "true", status=2)
    assert "no Python process that loaded the recorder in `true`" in capfd.readouterr().err
    assert left(folder) == []


def test_a_result_that_is_there_is_replaced_by_force_alone(folder, capfd):
    doctor("-q", "--", *TRAIN)
    (folder / "train.py").write_text(f"open('ran', 'w')\n{TRAINING}")
    doctor("--", *TRAIN, status=2)
    assert "--out: holds another result" in capfd.readouterr().err
    assert not (folder / "ran").exists()
    doctor("--force", "--", *TRAIN)
    assert left(folder) == ["doctor-train"]


@pytest.mark.parametrize(
    "words",
    ["results show A", "results plot A", "results verify A", "report A", "compare A A"],
)
def test_other_verbs_say_whose_folder_it_is(words, folder, capfd):
    doctor("-q", "--", *TRAIN)
    assert main(words.replace("A", "results/doctor-train").split()) == 2
    assert "simshuffle doctor FOLDER" in capfd.readouterr().err


def test_tries_that_somebody_changed_are_refused(folder, capfd):
    doctor("-q", "--", *TRAIN)
    (folder / "results/doctor-train/tries.json").write_text('[{"name": 1}]')
    doctor("doctor-train", status=2)
    assert "must be what was tried" in capfd.readouterr().err
