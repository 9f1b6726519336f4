"""Running a script under the recorder: its own status, its own signals, nothing that stays behind.

The scripts here are no trainings: they write a file that is called as one of rows is."""

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from simshuffle.errors import InputError
from simshuffle.extensions.doctor import running
from simshuffle.extensions.doctor.recorder import SITE

ROOT = Path(__file__).parents[2]
BEGIN = """
import os, pathlib, signal, subprocess, sys, time
rows = pathlib.Path(os.environ["SIMSHUFFLE_RECORD"])
def recorded():
    rows.joinpath(f"{os.getpid()}.rows").write_text("a row")
"""
PATIENCE = 600.0


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """What would be asked harder after 10 s is so after 0.3 s."""
    monkeypatch.setattr(running, "GRACE", 0.3)
    monkeypatch.setattr(running, "POLL_S", 0.02)


@pytest.fixture
def rows(tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    return folder


def python(text):
    return [sys.executable, "-c", BEGIN + text]


def is_there(process):
    """Whether it runs: one that has ended, and that nobody has asked about, does not."""
    with suppress(OSError):
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z"
    return False


def has_gone(process):
    """Whether it ends: a kernel takes a moment to end one that was killed."""
    until = time.monotonic() + PATIENCE
    while is_there(process) and time.monotonic() < until:
        time.sleep(0.01)
    return not is_there(process)


def run(text, rows, **more):
    said = []
    return running.run_recorded(python(text), rows, said.append, **more), said


def asked_when_it_runs(rows, *numbers):
    """Send signals to this process, each once another file of rows is there."""

    def send():
        for count, number in enumerate(numbers, 1):
            until = time.monotonic() + PATIENCE
            while len(list(rows.glob("*.rows"))) < count and time.monotonic() < until:
                time.sleep(0.01)
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


# ------------------------------------------------------------------------------------- its own end


@pytest.mark.parametrize(
    ("text", "status"), [("pass", 0), ("sys.exit(3)", 3), ("raise ValueError('mine')", 1)]
)
def test_the_status_is_the_script_s_own(text, status, rows):
    assert run(text, rows)[0].status == status


def test_a_signal_that_kills_it_is_said_as_a_shell_does(rows):
    ended, said = run("os.kill(os.getpid(), signal.SIGSEGV)", rows)
    assert (ended.status, ended.signal_number, said) == (128 + signal.SIGSEGV, 0, [])


def test_it_has_its_own_streams_and_environment(rows, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "mine")
    monkeypatch.setenv("MINE", "kept")
    text = "print(os.environ['PYTHONPATH'], os.environ['MINE']); print('told', file=sys.stderr)"
    run(text, rows)
    assert capfd.readouterr() == (f"{SITE}{os.pathsep}mine kept\n", "told\n")
    run(text, rows, to_stderr=True)
    assert capfd.readouterr().out == ""


def test_it_is_told_what_the_recorder_is_to_do(rows, capfd):
    names = ("SIMSHUFFLE_RECORD", "SIMSHUFFLE_RECORD_SECONDS", "SIMSHUFFLE_RECORD_CHANGES")
    text = f"for name in {names}: print(os.environ.get(name))"
    run(text, rows)
    assert capfd.readouterr().out.split() == [str(rows), "None", "None"]
    run(text, rows, seconds=30.0, changes={"num_workers": 4})
    assert capfd.readouterr().out.splitlines() == [str(rows), "30.0", '{"num_workers": 4}']


# -------------------------------------------------------------------------------------- a bad start


def test_a_file_that_cannot_be_executed_is_refused(tmp_path, rows):
    program = tmp_path / "train"
    program.write_bytes(b"\x00\x01")
    program.chmod(0o755)
    running.check_command([str(program)])
    with pytest.raises(InputError, match="Exec format error"):
        running.run_recorded([str(program)], rows, print)


# ------------------------------------------------------------------------------------------ signals


def test_the_first_interrupt_is_the_script_s_own_business(rows, monkeypatch):
    """There is no terminal that would have sent it, so it is passed on: once."""
    monkeypatch.setattr(running, "_has_terminal", lambda: False)
    text = """
recorded()
try:
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)  # longer than one that is ended would be let
    sys.exit(7)
"""
    thread = asked_when_it_runs(rows, signal.SIGINT)
    ended, said = run(text, rows)
    thread.join()
    assert (ended.status, ended.signal_number) == (7, signal.SIGINT)
    assert said == ["Interrupted: waiting for the script. Press Ctrl-C once more to end it."]


def test_the_second_interrupt_ends_a_script_that_holds_on(rows, monkeypatch):
    monkeypatch.setattr(running, "_has_terminal", lambda: False)
    text = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def again(*_):
    rows.joinpath("2.rows").write_text("a row")
signal.signal(signal.SIGINT, again)
recorded()
while True:
    time.sleep(60)
"""
    thread = asked_when_it_runs(rows, signal.SIGINT, signal.SIGINT)
    ended, said = run(text, rows)
    thread.join()
    assert ended.status == 128 + signal.SIGKILL
    assert said[1:] == ["The script is ended. What was recorded is kept."]


def test_being_terminated_is_passed_on(rows):
    thread = asked_when_it_runs(rows, signal.SIGTERM)
    ended, _ = run("recorded(); time.sleep(60)", rows)
    thread.join()
    assert (ended.status, ended.signal_number) == (128 + signal.SIGTERM, signal.SIGTERM)


def test_a_signal_that_this_program_ignores_the_script_ignores(rows):
    """As of nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        ended, _ = run("sys.exit(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)", rows)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert ended.status == 1  # true


def test_handlers_of_before_are_there_again(rows):
    before = [signal.getsignal(number) for number in running.END_SIGNALS]
    run("pass", rows)
    assert [signal.getsignal(number) for number in running.END_SIGNALS] == before


def test_a_real_terminal_interrupts_the_script_once(tmp_path):
    """Ctrl-C in a terminal of its own: the script counts how often it comes."""
    script = tmp_path / "script.py"
    script.write_text(
        BEGIN
        + """
count = 0
def interrupted(*_):
    global count
    count += 1
signal.signal(signal.SIGINT, interrupted)
recorded()
print("begun", flush=True)
until = time.monotonic() + 60
while not count and time.monotonic() < until:
    time.sleep(0.05)
time.sleep(0.5)
sys.exit(40 + count)
"""
    )
    (tmp_path / "rows").mkdir()
    program = f"""
import sys
from pathlib import Path
from simshuffle.extensions.doctor import running
ended = running.run_recorded([sys.executable, {str(script)!r}], Path("rows"), print)
print("ended", ended.status, ended.signal_number, flush=True)
"""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        os.execve(sys.executable, [sys.executable, "-c", program], environment)
    shown = b""
    while b"begun" not in shown:
        shown += os.read(terminal, 1024)
    os.write(terminal, b"\x03")
    with suppress(OSError):
        while chunk := os.read(terminal, 1024):
            shown += chunk
    os.waitpid(process, 0)
    os.close(terminal)
    assert b"ended 41 2" in shown


# ---------------------------------------------------------------------------------- what never ends


def test_a_script_that_goes_on_after_its_seconds_is_ended(rows):
    text = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
recorded()
time.sleep(60)
"""
    ended, said = run(text, rows, seconds=0.1)
    assert (ended.overdue, ended.status) == (True, 0)  # it was asked to end
    assert said[0] == "The script goes on after 0.1 s of steps: it is interrupted."


def test_before_its_first_batch_a_script_has_all_the_time_it_likes(rows):
    ended, said = run("time.sleep(0.9)", rows, seconds=0.1)
    assert (ended.status, ended.overdue, said) == (0, False, [])


CHILD = """
child = subprocess.Popen(
    [sys.executable, "-c", {text!r}],
    start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
)
rows.joinpath("child").write_text(str(child.pid))
while not rows.joinpath("ready").exists():
    time.sleep(0.01)
{after}
"""
STUBBORN = (
    BEGIN
    + """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{begin}
rows.joinpath("ready").touch()
time.sleep(60)
"""
)


@pytest.mark.parametrize("of_training", [True, False])
def test_a_worker_does_not_stay_behind_and_another_may(of_training, rows):
    """In a session of its own, so that no signal of a terminal reaches it."""
    text = STUBBORN.replace("{begin}", "recorded()" if of_training else "")
    ended, said = run(CHILD.format(text=text, after="sys.exit(0)"), rows)
    child = int((rows / "child").read_text())
    try:
        assert ended.status == 0
        assert has_gone(child) if of_training else is_there(child)
        assert said == ["Ended with the script: 1 of its processes."] * 2 * of_training
    finally:
        with suppress(OSError):
            os.kill(child, signal.SIGKILL)


def test_of_a_script_that_is_ended_nothing_stays(rows):
    """Of a shell, too, which passes no signal on."""
    text = CHILD.format(text=STUBBORN.replace("{begin}", ""), after="recorded(); time.sleep(60)")
    (rows.parent / "inner.py").write_text(BEGIN + text)
    command = ["sh", "-c", f"{sys.executable} {rows.parent / 'inner.py'}; true"]
    said = []
    ended = running.run_recorded(command, rows, said.append, seconds=0.1)
    assert ended.overdue
    assert has_gone(int((rows / "child").read_text()))
    assert not subprocess.run(
        ["pgrep", "-f", str(rows.parent / "inner.py")], capture_output=True, check=False
    ).stdout
