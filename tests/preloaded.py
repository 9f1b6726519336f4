"""Commands in processes of their own that need not import everything again: each is forked from one
process that has. An import of all that a command needs takes seconds, most commands less."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.shared import once, shared_folder

PATIENCE = 900
"""s until a command is killed."""

PARENT = """
import atexit, gc, importlib, json, os, pkgutil, re, signal, sys, traceback, warnings
from contextlib import redirect_stdout, suppress
import simshuffle
from simshuffle.cli import main
from simshuffle.study import standing
standing.FIRST_LINE = float("inf")  # no lines of progress, however busy the machine is
with suppress(ImportError):
    import sklearn.datasets, sklearn.manifold
    from simshuffle.train.training import load_optimizers
    load_optimizers()
words = ["run", "quickstart", "--quiet", "--set", "epochs=1", "--set", "world_size=4"]
words += ["--set", "workload.dataset.num_samples=256", "--out", "run"]
# kernels, fonts and all modules are loaded once
with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
    assert main(words) == 0
    assert main(["report", "run", "--out", "run.html", "--quiet"]) == 0
    for module in pkgutil.walk_packages(simshuffle.__path__, "simshuffle."):
        if not re.search("__main__|distributed|recorder", module.name):
            importlib.import_module(module.name)
gc.collect()
gc.freeze()  # so that no child looks through, and thereby copies, what all have
for line in sys.stdin:
    folder, outputs, patience, code, words, variables = json.loads(line)
    child = os.fork()
    if not child:
        signal.alarm(patience)
        os.chdir(folder)
        os.environ.update(variables)
        files = [os.open(os.devnull, os.O_RDONLY)]
        files += [os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666) for name in outputs]
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        status = 0
        try:
            if words:
                status = main(words)
            else:
                warnings.simplefilter("error")
                exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})
        except BaseException:
            status = 1
            traceback.print_exc()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # Python taking itself apart would copy all of the parent: 1.4 s
    _, status, used = os.wait4(child, 0)
    seconds = used.ru_utime + used.ru_stime
    print(json.dumps([os.waitstatus_to_exitcode(status), seconds]), flush=True)
"""


@dataclass(frozen=True)
class Done:
    """A process that has ended.

    Attributes:
        status: its exit status; below 0 the signal that killed it.
        stdout, stderr: what it printed.
        seconds: of CPU, with the processes that it waited for.
    """

    status: int
    stdout: bytes
    stderr: bytes
    seconds: float


class Preloaded:
    """A process that has imported simshuffle, and forks. It has no terminal.

    Args:
        environment: its variables beside those of this process, such as PYTHONPATH.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        # the commands that came with this Python, such as torchrun
        search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._outputs = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [sys.executable, "-c", PARENT],
            env={**os.environ, "PATH": search, **(environment or {})},
            cwd=self._outputs.name,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def simshuffle(self, words: Sequence[str], folder: Path, **variables: str) -> Done:
        """The command line with these words, run in ``folder``."""
        return self._run("", list(words), folder, variables)

    def python(self, code: str, folder: Path, **variables: str) -> Done:
        """A piece of Python whose warnings are errors, run in ``folder``."""
        return self._run(code, [], folder, variables)

    def _run(self, code: str, words: list[str], folder: Path, variables: dict[str, str]) -> Done:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        outputs = [Path(self._outputs.name, name) for name in ("stdout", "stderr")]
        asked = [str(folder), [str(path) for path in outputs], PATIENCE, code, words, variables]
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, "the process that forks has ended"
        status, seconds = json.loads(answer)
        if status == -signal.SIGALRM:
            raise TimeoutError(f"not done after {PATIENCE} s, of which {seconds:.2f} s on a core")
        return Done(status, *(path.read_bytes() for path in outputs), seconds)

    def end(self) -> None:
        """Let the process end."""
        self._process.communicate()
        self._outputs.cleanup()


@contextmanager
def one_core() -> Iterator[None]:
    """What is started meanwhile may use one core, so that a study does its cells in the process
    that asks. Others would load everything again, which takes longer than most cells. Each process
    of the tests has a core of its own, as long as there are enough."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, {sorted(cores)[worker % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def run_ranks(script: str, factory: pytest.TempPathFactory, patience: float) -> Path:
    """Run a test's file as a script of its own, once for a whole run of the tests, and return the
    folder that its ranks have filled. It starts its ranks by `fork_ranks`, with warnings as errors.
    All of them are killed after ``patience`` s."""
    place = shared_folder(factory) / Path(script).stem
    return once(place, lambda folder: _run_ranks(script, folder, patience))


def _run_ranks(script: str, folder: Path, patience: float) -> None:
    root = str(Path(__file__).parents[1])
    with (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", script, str(folder)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root},
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
    try:
        status = process.wait(patience)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert status == 0, (folder / "errors").read_text()[-6000:]


def fork_ranks(count: int, work: Callable[[int], None]) -> None:
    """Call ``work`` with the number of a rank in as many forks of this process; ends it."""
    from simshuffle.train.training import load_optimizers

    load_optimizers()  # once for all
    children = []
    for rank in range(count):
        with warnings.catch_warnings(action="ignore"):  # of threads, of which none holds a lock
            child = os.fork()
        if not child:
            try:
                work(rank)
            except BaseException:  # noqa: BLE001
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)  # threads of gloo can abort a process while Python takes itself apart
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(any(codes))
