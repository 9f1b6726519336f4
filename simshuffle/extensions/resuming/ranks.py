"""Runs a script with `make`, `state` and `resume` in the interpreter that it needs, and
does with them what it is told: a line of JSON a job, answered by a line. Of the
standard library alone.

The script is loaded once; each rank of a job is a process that is forked from this one.
A job is

- ``run``: what `make` and `resume` get as attributes of their argument, beside rank and world_size:
  ranks of a node, nodes, workers, batch_size, seed, samples of each shard, folder, epoch and step
  where it is broken off, and ranks_before and workers_before;
- ``first``, ``last``: epochs to go through, both ends included;
- ``kill_at``: the step of the last epoch, from 1, at which each rank saves its state; it goes on
  for ``further`` batches, which it does not write, and is killed; -1 to end well;
- ``save_at``: pairs of epoch and step, from 1, at which each rank saves its state, and goes on;
- ``states``: the folder with the states to resume from, of ``saved`` ranks; '' to begin;
- ``out``: a folder that exists, where rank r writes `r.jsonl`, a line ``[epoch, step, samples]`` a
  batch, with the step from 0, `r.state`, and `EPOCH-STEP/r.state` for each pair of ``save_at``;
- ``seconds``: after which ranks that have not ended are killed; ``patience``: the same, after one
  of them has failed, for which the others may wait in vain; as long by default.

Ranks write `r.times`, too: s that `make` or `resume` took, and until the first batch
was there. The answer has what each rank came to: 'ended', 'killed' (by itself, as
told), 'hangs', or its error. Where standard input ends, whatever the reason, all ranks
are killed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

ENDED, KILLED, HANGS = "ended", "killed", "hangs"
FUNCTIONS = ("make", "state", "resume")
LIBRARIES = (
    *(
        "torch",
        "torchdata",
        "webdataset",
        "litdata",
        "streaming",
        "datasets",
        "accelerate",
    ),
    *(
        "lightning",
        "transformers",
        "ray",
        "torchft",
        "grain",
        "energon",
        "tensorflow",
        "dali",
    ),
)
"""Libraries whose versions the first answer has, if the script has imported them."""
MAX_ERROR_CHARACTERS = 400
"""Length to which the text of an error is cut (characters)."""


class BatchError(TypeError):
    """A batch that is not made of numbers."""


class StateError(RuntimeError):
    """An error of a script's `state`, or of pickling what it returned."""


class RankArguments(SimpleNamespace):
    """The attributes of the argument that `make` and `resume` get."""

    def __getattr__(self, name: str) -> Any:
        """Raise an AttributeError that lists the attributes there are."""
        raise AttributeError(f"run has no {name!r}; it has {', '.join(vars(self))}")


def main() -> None:
    """Load the script, and run the jobs of standard input until it ends.

    The first answer says whether the script is loaded and has all `FUNCTIONS`. If not,
    no job is run. Standard output is for answers alone: what the script prints goes to
    standard error. The standard input of the script is empty.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the script prints is not an answer
    jobs = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = sys.argv[1:]
    try:
        script = load_script(Path(sys.argv[0]).resolve())
        missing = [name for name in FUNCTIONS if not callable(script.get(name))]
        found_versions = {
            name: getattr(sys.modules.get(name), "__version__", "")
            for name in LIBRARIES
        }
        versions = {
            name: str(version) for name, version in found_versions.items() if version
        }
        readiness = {"ready": not missing, "missing": missing, "versions": versions}
    except BaseException as error:  # noqa: BLE001 - a script may raise anything, and it is told
        traceback.print_exc()
        readiness = {"ready": False, "missing": [], "error": describe_error(error)}
    _answer(answers, readiness)
    if not readiness["ready"]:
        return
    for line in jobs:
        _answer(answers, run_job(json.loads(line), script, jobs))


def load_script(path: Path) -> dict[str, Any]:
    """Load the script as a module, and return its names.

    It stands among the modules, so that what it pickles can be found again, and its
    folder in the place of this module's.
    """
    own_folder = Path(__file__).resolve().parent
    sys.path[:] = [
        str(path.parent),
        *(folder for folder in sys.path if Path(folder).resolve() != own_folder),
    ]
    name = (
        path.stem
        if path.stem.isidentifier() and path.stem not in sys.modules
        else "audited"
    )
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return vars(module)


def _answer(answers: TextIO, answer: dict[str, Any]) -> None:
    """Write an answer as a line of JSON."""
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def run_job(
    job: dict[str, Any], script: dict[str, Any], jobs: TextIO
) -> dict[str, Any]:
    """Fork the ranks of a job, wait for them, and return the answer.

    Its key 'ranks' lists how each rank ended: 'ended', 'killed', 'hangs', or the text
    of its error. Ranks that still run when the job's seconds are over, or when ``jobs``
    has more or ends, are killed. Workers that a rank leaves behind are killed, too.
    """
    world_size = job["run"]["nodes"] * job["run"]["ranks"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = {}
    for rank in range(world_size):
        child = os.fork()
        if child == 0:
            run_rank(job, script, rank, port)
        with contextlib.suppress(OSError):  # it has done so itself, and may have gone
            os.setpgid(child, child)
        running[child] = rank
    ends = [HANGS] * world_size
    deadline = time.monotonic() + job["seconds"]
    while running and time.monotonic() < deadline:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            if select.select([jobs], [], [], 0.002)[0]:
                break
        elif child in running:
            end_of_rank = ends[running.pop(child)] = describe_status(status)
            _kill_group(child)
            if end_of_rank not in {ENDED, KILLED}:
                patience = job.get("patience", job["seconds"])
                deadline = min(deadline, time.monotonic() + patience)
    for child in running:
        _kill_group(child)
        os.waitpid(child, 0)
    errors = Path(job["out"])
    for rank, end in enumerate(ends):
        error_file = errors / f"{rank}.error"
        if end not in {ENDED, KILLED, HANGS} and error_file.exists():
            ends[rank] = error_file.read_text(encoding="utf-8")
    return {"ranks": ends}


def _kill_group(process_id: int) -> None:
    """Kill the process of a rank, and the workers that it started, if any still run."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process_id, signal.SIGKILL)


def describe_status(status: int) -> str:
    """Return how a rank ended, from its wait status: ended, killed, a signal or a
    status.
    """
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return KILLED if number == signal.SIGKILL else f"ended by signal {number}"
    code = os.WEXITSTATUS(status)
    return f"exit status {code}" if code else ENDED


def run_rank(job: dict[str, Any], script: Any, rank: int, port: int) -> None:
    """Run a rank of a job in a forked process, which ends with it; does not return.

    An error is written to the file `RANK.error`.
    """
    code = 1
    out = Path(job["out"])
    try:
        os.setpgid(0, 0)
        set_torchrun_variables(job, rank, port)
        with (out / f"{rank}.jsonl").open("w", encoding="utf-8") as rows:
            train_rank(job, script, rank, rows)
        code = 0
    except BaseException as error:  # noqa: BLE001 - as above
        traceback.print_exc()
        (out / f"{rank}.error").write_text(describe_error(error), encoding="utf-8")
    finally:
        sys.stderr.flush()
        os._exit(code)


def set_torchrun_variables(job: dict[str, Any], rank: int, port: int) -> None:
    """Set the environment variables that torchrun sets."""
    ranks = job["run"]["ranks"]
    nodes = job["run"]["nodes"]
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(nodes * ranks),
        LOCAL_RANK=str(rank % ranks),
        LOCAL_WORLD_SIZE=str(ranks),
        GROUP_RANK=str(rank // ranks),
        NODE_RANK=str(rank // ranks),
        GROUP_WORLD_SIZE=str(nodes),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        OMP_NUM_THREADS="1",
    )


def train_rank(job: dict[str, Any], script: Any, rank: int, rows: TextIO) -> None:
    """Go through the epochs of a job, and write the samples that this rank trains on.

    A row has its step from 0, while ``kill_at`` and ``save_at`` count steps from 1. The
    batches after ``kill_at`` are taken from the loader, but not written. A `set_epoch`
    of the loader is called before each epoch. The module says which states and times
    are written. With ``kill_at``, the rank kills itself and its workers.

    Raises:
        RuntimeError: the last epoch ended before the step at which the rank was to be
            killed.
        StateError: the loader has no state, or one that cannot be pickled.
        BatchError: a batch is not a list of whole numbers.
    """
    run_values = job["run"]
    begin = time.monotonic()
    run = RankArguments(
        **run_values, rank=rank, world_size=run_values["nodes"] * run_values["ranks"]
    )
    if job["states"]:
        files = [
            Path(job["states"]) / f"{saved_rank}.state"
            for saved_rank in range(job["saved"])
        ]
        states = [pickle.loads(file.read_bytes()) for file in files]  # noqa: S301 - its own
        loader = script["resume"](run, states)
    else:
        loader = script["make"](run)
    made_at = time.monotonic()
    state_at = job["kill_at"]
    out = Path(job["out"])
    times = {"made": made_at - begin}
    for epoch in range(job["first"], job["last"] + 1):
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        dies = state_at >= 0 and epoch == job["last"]
        for step, batch in enumerate(loader, 1):
            if "first" not in times:
                times["first"] = time.monotonic() - begin
                (out / f"{rank}.times").write_text(json.dumps(times), encoding="utf-8")
            if not (dies and step > state_at):
                rows.write(json.dumps([epoch, step - 1, sample_numbers(batch)]) + "\n")
            if dies and step == state_at:
                rows.flush()
                (out / f"{rank}.state").write_bytes(pickle_state(script, loader))
            if [epoch, step] in job["save_at"]:
                state_folder = out / f"{epoch}-{step}"
                state_folder.mkdir(exist_ok=True)
                (state_folder / f"{rank}.state").write_bytes(
                    pickle_state(script, loader)
                )
            if dies and step == state_at + job["further"]:
                os.killpg(0, signal.SIGKILL)  # with the workers that it has started
    if state_at >= 0:
        message = f"the epoch ended before step {state_at} + {job['further']}"
        raise RuntimeError(message)


def pickle_state(script: Any, loader: Any) -> bytes:
    """Return the pickled state of a loader.

    Raises:
        StateError: the script's `state` raises, or returns what cannot be pickled.
    """
    try:
        return pickle.dumps(script["state"](loader))
    except Exception as error:
        raise StateError(f"state(loader) raises {describe_error(error)}") from error


def sample_numbers(batch: Any) -> list[int]:
    """Return the sample numbers of a batch: a list, tensor or array of one dimension.

    Raises:
        BatchError: the batch is nested, a mapping or a text, or has values that are not
            whole numbers.
    """
    samples = batch.tolist() if hasattr(batch, "tolist") else batch
    try:
        numbers = [int(number) for number in samples]
        if isinstance(samples, str | bytes | dict) or numbers != [*samples]:
            raise ValueError
    except (TypeError, ValueError):
        raise BatchError(repr(batch)[:100]) from None
    return numbers


def describe_error(error: BaseException) -> str:
    """Return type and text of an error, cut to `MAX_ERROR_CHARACTERS`."""
    return f"{type(error).__name__}: {error}".strip()[:MAX_ERROR_CHARACTERS]


if __name__ == "__main__":
    main()
