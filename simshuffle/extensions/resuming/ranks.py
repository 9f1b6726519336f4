"""Runs a script with `make`, `state` and `resume` in the interpreter that it needs, and does with
them what it is told: a line of JSON a job, answered by a line. Of the standard library alone.

The script is loaded once; each rank of a job is a process that is forked from this one. A job is

- ``run``: what `make` and `resume` get as attributes of their argument, beside rank and world_size:
  ranks of a node, nodes, workers, batch_size, seed, samples of each shard, folder, epoch and step
  where it is broken off, and ranks_before and workers_before;
- ``first``, ``last``: epochs to go through, both ends included;
- ``kill_at``: the step of the last epoch at which each rank saves its state; it goes on for
  ``further`` batches and is killed; -1 to end well;
- ``save_at``: pairs of epoch and step at which each rank saves its state, and goes on;
- ``states``: the folder with the states to resume from, of ``saved`` ranks; '' to begin;
- ``out``: a folder, where rank r writes `r.jsonl`, a line ``[epoch, step, samples]`` a batch,
  `r.state`, and `EPOCH-STEP/r.state` for each pair of ``save_at``;
- ``seconds``: after which ranks that have not ended are killed; ``patience``: the same, after one
  of them has failed, for which the others may wait in vain; as long by default.

Ranks write `r.times`, too: s that `make` or `resume` took, and until the first batch was there.
The answer has what each rank came to: 'ended', 'killed' (by itself, as told), 'hangs', or its
error. Where standard input ends, whatever the reason, all ranks are killed.
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
    *("torch", "torchdata", "webdataset", "litdata", "streaming", "datasets", "accelerate"),
    *("lightning", "transformers", "ray", "torchft", "grain", "energon", "tensorflow", "dali"),
)
"""Whose versions are told if the script has loaded them."""
_LONGEST = 400
"""Characters of an error that are told."""


class BatchError(TypeError):
    """A batch that is not made of numbers."""


class StateError(RuntimeError):
    """What `state` of a script raised."""


class RankArguments(SimpleNamespace):
    """What `make` and `resume` are told, as attributes."""

    def __getattr__(self, name: str) -> Any:
        """Called where there is none of that name."""
        raise AttributeError(f"run has no {name!r}, but {', '.join(vars(self))}")


def main() -> None:
    """Load the script, and do the jobs of standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the script prints is not an answer
    jobs = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = sys.argv[1:]
    try:
        script = _loaded(Path(sys.argv[0]).resolve())
        missing = [name for name in FUNCTIONS if not callable(script.get(name))]
        known = {name: getattr(sys.modules.get(name), "__version__", "") for name in LIBRARIES}
        versions = {name: str(version) for name, version in known.items() if version}
        said = {"ready": not missing, "missing": missing, "versions": versions}
    except BaseException as error:  # noqa: BLE001 - a script may raise anything, and it is told
        traceback.print_exc()
        said = {"ready": False, "missing": [], "error": _said(error)}
    _answer(answers, said)
    if not said["ready"]:
        return
    for line in jobs:
        _answer(answers, _done(json.loads(line), script, jobs))


def _loaded(path: Path) -> dict[str, Any]:
    """The names of the script, which is a module, so that what it pickles can be found again."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [str(path.parent), *(each for each in sys.path if Path(each).resolve() != here)]
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else "audited"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return vars(module)


def _answer(answers: TextIO, of: dict[str, Any]) -> None:
    answers.write(json.dumps(of) + "\n")
    answers.flush()


def _done(job: dict[str, Any], script: dict[str, Any], jobs: TextIO) -> dict[str, Any]:
    """The answer to a job: its ranks, forked, and waited for; until ``jobs`` ends."""
    world_size = job["run"]["nodes"] * job["run"]["ranks"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = {}
    for rank in range(world_size):
        child = os.fork()
        if child == 0:
            _rank(job, script, rank, port)
        with contextlib.suppress(OSError):  # it has done so itself, and may have gone
            os.setpgid(child, child)
        running[child] = rank
    came_to, deadline = [HANGS] * world_size, time.monotonic() + job["seconds"]
    while running and time.monotonic() < deadline:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            if select.select([jobs], [], [], 0.002)[0]:
                break
        elif child in running:
            came = came_to[running.pop(child)] = _came_to(status)
            _kill_group(child)
            if came not in {ENDED, KILLED}:
                patience = job.get("patience", job["seconds"])
                deadline = min(deadline, time.monotonic() + patience)
    for child in running:
        _kill_group(child)
        os.waitpid(child, 0)
    errors = Path(job["out"])
    for rank, one in enumerate(came_to):
        told = errors / f"{rank}.error"
        if one not in {ENDED, KILLED, HANGS} and told.exists():
            came_to[rank] = told.read_text(encoding="utf-8")
    return {"ranks": came_to}


def _kill_group(rank: int) -> None:
    """Kill a rank, and the workers that it started, which would wait for it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(rank, signal.SIGKILL)


def _came_to(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return KILLED if number == signal.SIGKILL else f"ended by signal {number}"
    code = os.WEXITSTATUS(status)
    return f"exit status {code}" if code else ENDED


def _rank(job: dict[str, Any], script: Any, rank: int, port: int) -> None:
    """A rank of a job; does not return."""
    code, out = 1, Path(job["out"])
    try:
        os.setpgid(0, 0)
        _environment(job, rank, port)
        with (out / f"{rank}.jsonl").open("w", encoding="utf-8") as rows:
            _trained(job, script, rank, rows)
        code = 0
    except BaseException as error:  # noqa: BLE001 - as above
        traceback.print_exc()
        (out / f"{rank}.error").write_text(_said(error), encoding="utf-8")
    finally:
        sys.stderr.flush()
        os._exit(code)


def _environment(job: dict[str, Any], rank: int, port: int) -> None:
    """The variables that torchrun sets."""
    ranks, nodes = job["run"]["ranks"], job["run"]["nodes"]
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


def _trained(job: dict[str, Any], script: Any, rank: int, rows: TextIO) -> None:
    """Go through the epochs of a job, and write what this rank trains on."""
    asked, begin = job["run"], time.monotonic()
    run = RankArguments(**asked, rank=rank, world_size=asked["nodes"] * asked["ranks"])
    if job["states"]:
        files = [Path(job["states"]) / f"{other}.state" for other in range(job["saved"])]
        states = [pickle.loads(each.read_bytes()) for each in files]  # noqa: S301 - its own
        loader = script["resume"](run, states)
    else:
        loader = script["make"](run)
    made, state_at, out = time.monotonic(), job["kill_at"], Path(job["out"])
    times = {"made": made - begin}
    for epoch in range(job["first"], job["last"] + 1):
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        dies = state_at >= 0 and epoch == job["last"]
        for step, batch in enumerate(loader, 1):
            if "first" not in times:
                times["first"] = time.monotonic() - begin
                (out / f"{rank}.times").write_text(json.dumps(times), encoding="utf-8")
            if not (dies and step > state_at):
                rows.write(json.dumps([epoch, step - 1, _numbers(batch)]) + "\n")
            if dies and step == state_at:
                rows.flush()
                (out / f"{rank}.state").write_bytes(_saved(script, loader))
            if [epoch, step] in job["save_at"]:
                place = out / f"{epoch}-{step}"
                place.mkdir(exist_ok=True)
                (place / f"{rank}.state").write_bytes(_saved(script, loader))
            if dies and step == state_at + job["further"]:
                os.killpg(0, signal.SIGKILL)  # with the workers that it has started
    if state_at >= 0:
        message = f"the epoch ended before step {state_at} + {job['further']}"
        raise RuntimeError(message)


def _saved(script: Any, loader: Any) -> bytes:
    """The state of a loader. Raises a StateError if it has none, or none that can be kept."""
    try:
        return pickle.dumps(script["state"](loader))
    except Exception as error:
        raise StateError(f"state(loader) raises {_said(error)}") from error


def _numbers(batch: Any) -> list[int]:
    """The samples of a batch, whatever it is made of. Raises a BatchError if it has others."""
    listed = batch.tolist() if hasattr(batch, "tolist") else batch
    try:
        numbers = [int(number) for number in listed]
        if isinstance(listed, str | bytes | dict) or numbers != [*listed]:
            raise ValueError
    except (TypeError, ValueError):
        raise BatchError(repr(batch)[:100]) from None
    return numbers


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip()[:_LONGEST]


if __name__ == "__main__":
    main()
