"""Runs a script with `make`, `state` and `resume` in the interpreter that it needs, and does with
them what it is told: a line of JSON a job, answered by a line. Of the standard library alone.

The script is loaded once; each rank of a job is a process that is forked from this one. A job is

- ``run``: what `make` and `resume` get as attributes of their argument: ranks, nodes, workers,
  batch_size, seed, samples of each shard, folder, and epoch and step where it is resumed;
- ``first``, ``last``: epochs to go through, both ends included;
- ``kill_at``: the step of the last epoch at which each rank saves its state; it goes on for
  ``further`` batches and is killed; -1 to end well;
- ``states``: the folder with the states to resume from, of ``saved`` ranks; '' to begin;
- ``out``: a folder, where rank r writes `r.jsonl`, a line ``[epoch, step, samples]`` a batch, and
  `r.state`;
- ``seconds``: after which ranks that have not ended are killed.

The answer has what each rank came to: 'ended', 'killed' (by itself, as told), 'hangs', or its
error.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import runpy
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

ENDED, KILLED, HANGS = "ended", "killed", "hangs"
_LONGEST = 400
"""Characters of an error that are told."""


def main() -> None:
    """Load the script, and do the jobs of standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the script prints is not an answer
    jobs = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    try:
        script = runpy.run_path(sys.argv[0], run_name="simshuffle_audit")
        missing = [name for name in ("make", "state", "resume") if not callable(script.get(name))]
        said = {"ready": not missing, "missing": missing}
    except BaseException as error:  # noqa: BLE001 - a script may raise anything, and it is told
        said = {"ready": False, "error": _said(error)}
    _answer(answers, said)
    if not said["ready"]:
        return
    for line in jobs:
        _answer(answers, _done(json.loads(line), script))


def _answer(answers, of) -> None:  # type: ignore[no-untyped-def]
    answers.write(json.dumps(of) + "\n")
    answers.flush()


def _done(job, script):  # type: ignore[no-untyped-def]
    """The answer to a job: its ranks, forked, and waited for."""
    world_size = job["run"]["nodes"] * job["run"]["ranks"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = {}
    for rank in range(world_size):
        child = os.fork()
        if child == 0:
            _rank(job, script, rank, port)
        running[child] = rank
    came_to, deadline = [HANGS] * world_size, time.monotonic() + job["seconds"]
    while running and time.monotonic() < deadline:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            time.sleep(0.002)
        elif child in running:
            came_to[running.pop(child)] = _came_to(status)
            _kill_group(child)
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


def _rank(job, script, rank, port) -> None:  # type: ignore[no-untyped-def]
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


def _environment(job, rank, port) -> None:  # type: ignore[no-untyped-def]
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


def _trained(job, script, rank, rows) -> None:  # type: ignore[no-untyped-def]
    """Go through the epochs of a job, and write what this rank trains on."""
    asked = job["run"]
    run = SimpleNamespace(**asked, rank=rank, world_size=asked["nodes"] * asked["ranks"])
    if job["states"]:
        files = [Path(job["states"]) / f"{other}.state" for other in range(job["saved"])]
        states = [pickle.loads(each.read_bytes()) for each in files]  # noqa: S301 - its own
        loader = script["resume"](run, states)
    else:
        loader = script["make"](run)
    state_at, out = job["kill_at"], Path(job["out"])
    for epoch in range(job["first"], job["last"] + 1):
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        dies = state_at >= 0 and epoch == job["last"]
        for step, batch in enumerate(loader, 1):
            if not (dies and step > state_at):
                rows.write(json.dumps([epoch, step - 1, _numbers(batch)]) + "\n")
            if dies and step == state_at:
                rows.flush()
                (out / f"{rank}.state").write_bytes(pickle.dumps(script["state"](loader)))
            if dies and step == state_at + job["further"]:
                os.killpg(0, signal.SIGKILL)  # with the workers that it has started
    if state_at >= 0:
        message = f"the epoch ended before step {state_at} + {job['further']}"
        raise RuntimeError(message)


def _numbers(batch) -> list[int]:  # type: ignore[no-untyped-def]
    """The samples of a batch, whatever it is made of."""
    if hasattr(batch, "tolist"):
        batch = batch.tolist()
    return [int(number) for number in batch]


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip()[:_LONGEST]


if __name__ == "__main__":
    main()
