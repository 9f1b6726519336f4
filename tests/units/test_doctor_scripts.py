"""The trainings that doctor is held against: each does what its line of causes.csv says, on devices
that take as long as they are told."""

import runpy
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent
sys.path.append(str(ROOT / "benchmarks"))
import doctor_scripts  # noqa: E402
import slow_disk  # noqa: E402
from slow_server import slow_server  # noqa: E402
from throttle import Throttle  # noqa: E402

SCRIPTS = doctor_scripts.scripts()
BY_NAME = {script.script: script for script in SCRIPTS}
# beside what the diagnosis names, '' for the healthy ones
CAUSES = {
    *("opens", "bandwidth", "latency", "decode", "transform", "collate", "lock", "page cache"),
    *("slow worker", "slow sample", "loader dips", "workers", "workers anew", "copy", "gil"),
    *("loop dips", "allreduce", "straggler rank", ""),
}


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self):
        self.seconds, self.slept = 0.0, []

    def now(self):
        return self.seconds

    def sleep(self, seconds):
        self.slept.append(seconds)


def test_bytes_pass_one_request_after_another_and_latencies_overlap():
    clock = Clock()
    throttle = Throttle(rate=100.0, now=clock.now, sleep=clock.sleep)
    for _ in range(3):  # asked at the same time, 50 bytes each
        throttle.wait(2.0, 50)
    # 0.5 s of bytes each, one after another, and 2 s that they all wait for together
    assert clock.slept == [2.5, 3.0, 3.5]
    clock.seconds = 10.0  # idle time is not saved up
    throttle.wait(2.0, 50)
    assert clock.slept[-1] == 2.5


def test_a_device_without_limits_does_not_wait():
    clock = Clock()
    Throttle(now=clock.now, sleep=clock.sleep).wait(0.0, 1_000_000)
    assert clock.slept == []


def test_a_request_waits_for_a_slot():
    inside = []

    def sleep(seconds):
        inside.append(throttle.slots.acquire(blocking=False))

    throttle = Throttle(in_flight=1, now=lambda: 0.0, sleep=sleep)
    throttle.wait(1.0, 0)
    assert inside == [False]  # nobody else gets in meanwhile
    assert throttle.slots.acquire(blocking=False)


def test_the_page_cache_holds_what_was_opened_last():
    cache = slow_disk.Cache(100)
    assert [cache.holds(path, 50) for path in "aabab"] == [False, True, False, True, True]
    assert not cache.holds("c", 50)  # a was opened longest ago
    assert [cache.holds(path, 50) for path in "bca"] == [True, True, False]
    assert not cache.holds("large", 200)  # what does not fit is not held, and pushes others out
    assert not cache.holds("large", 200)


def test_every_script_has_a_line_and_every_line_a_script():
    files = {path.stem for path in (ROOT / "benchmarks" / "doctor_scripts").glob("*.py")}
    assert files - {"common", "data"} == set(BY_NAME)
    assert len(SCRIPTS) == len(BY_NAME) == 25
    assert sum(not script.cause for script in SCRIPTS) == 5
    assert {script.cause for script in SCRIPTS} == CAUSES
    for script in SCRIPTS:
        assert bool(script.cause) == bool(script.remedy)


@pytest.fixture
def ran(monkeypatch, capsys):
    """Runs a script in this process, and returns what it prints."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "doctor_scripts")
    threads = torch.get_num_threads()

    def run(name, *options):
        path = ROOT / "benchmarks" / "doctor_scripts" / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(path), *options])
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out

    yield run
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", BY_NAME)
def test_every_script_says_what_it_does(ran, name, capsys):
    with pytest.raises(SystemExit) as ended:
        ran(name, "--help")
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert "--remedy" in told
    assert ("Remedy:" in told) == bool(BY_NAME[name].cause)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores
@pytest.mark.parametrize("name", ["slow_collate", "slow_transform", "http_latency", "tiny_files"])
def test_a_script_trains_with_its_remedy_and_without(ran, name, tmp_path, monkeypatch):
    script = BY_NAME[name]
    if why := script.lacks():
        pytest.skip(why)
    monkeypatch.setattr(doctor_scripts, "DATA", tmp_path)
    with script.placed() as data:
        for options in ([], ["--remedy"]):
            assert doctor_scripts.seconds_of(ran(name, "--data", data, "--steps", "4", *options))


def test_a_slow_disk_shows_the_folder_and_is_gone_afterwards(tmp_path):
    if why := slow_disk.missing():
        pytest.skip(why)
    folder, mount = tmp_path / "data" / "inner", tmp_path / "mount"
    folder.mkdir(parents=True)
    content = bytes(range(256)) * 2000
    (folder / "a.bin").write_bytes(content)
    with slow_disk.slow_disk(tmp_path / "data", mount, "--open-s", "0.001") as place:
        assert [path.name for path in (place / "inner").iterdir()] == ["a.bin"]
        assert (place / "inner" / "a.bin").read_bytes() == content
        with pytest.raises(OSError, match="Read-only"):
            (place / "inner" / "a.bin").write_bytes(b"")
    assert not mount.exists()
    assert (folder / "a.bin").read_bytes() == content


def test_a_slow_server_gives_files_of_its_folder_alone(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"content")
    (tmp_path / "secret").write_bytes(b"")
    with slow_server(folder, "--open-s", "0.001") as address:
        with urlopen(f"{address}/a.bin") as response:
            assert response.read() == b"content"
        for path in ("none", "../secret", ""):
            with pytest.raises(HTTPError) as refused:
                urlopen(f"{address}/{path}")
            refused.value.close()
            assert refused.value.code == 404
    with pytest.raises(OSError, match="refused"):
        urlopen(f"{address}/a.bin")


def diagnosis(*causes, change=None):
    """As doctor writes it."""
    named = [{"name": name, "share": share, "confidence": 1.0} for name, share in causes]
    helps = [{"change": None, "cause": name, "share": share} for name, share in causes]
    helps.insert(0, {"change": change, "cause": "", "share": 0.3})
    return {"causes": named, "remedies": helps}


def test_what_is_predicted_is_of_the_argument_or_of_what_is_named_against_the_cause():
    argument, other = BY_NAME["no_workers"], BY_NAME["slow_copy"]
    found = diagnosis(("workers", 0.5), ("copy", 0.2), change={"loader": {"num_workers": 2}})
    assert doctor_scripts.predicted(argument, found) == 0.3
    found = diagnosis(("workers", 0.5), ("copy", 0.2), change={"loader": {"pin_memory": True}})
    assert doctor_scripts.predicted(argument, found) is None
    assert doctor_scripts.predicted(other, found) == 0.2
    assert doctor_scripts.predicted(other, diagnosis(("workers", 0.5))) is None


def test_an_outcome_compares_what_was_predicted_with_what_pairs_of_runs_gain(monkeypatch):
    script = BY_NAME["slow_collate"]
    found = diagnosis(("collate", 0.5))
    monkeypatch.setattr(doctor_scripts, "examined", lambda *_: (found, 0.11))
    runs = iter([0.10, 0.06, 0.12, 0.06])  # without and with, twice: gains of 40 % and 50 %
    monkeypatch.setattr(doctor_scripts.Script, "seconds", lambda *_: next(runs))
    came = doctor_scripts.outcome(script, steps=8, pairs=2)
    assert (came.found, came.confidence, came.predicted) == ("collate", 1.0, 0.5)
    assert came.measured == pytest.approx(0.45)
    assert came.off == pytest.approx(0.05)
    assert (came.batch_s, came.remedied_s, came.recorded_s) == (0.11, 0.06, 0.11)
    assert came.line().startswith("  slow_collate")
    healthy = doctor_scripts.outcome(BY_NAME["healthy_step"], steps=8, pairs=2)
    assert healthy.line().startswith("* healthy_step")  # found one where there is none
