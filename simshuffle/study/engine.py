"""Cells of a request are done or found and collected to a result, which is read from its folder."""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Any, NotRequired, TypeVar

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from simshuffle.errors import InputError, Problem, SimshuffleError, SimulationError, refuse
from simshuffle.report.columns import MOST
from simshuffle.report.folders import meta_of
from simshuffle.spec.library import INPUTS
from simshuffle.study.cell import Cell, Outcome, digest_of
from simshuffle.study.executors import Executor, Here, usable_cores
from simshuffle.study.long_table import LazyTables, Table
from simshuffle.study.schema import LARGEST, REMEDY
from simshuffle.study.server import handled, interrupt
from simshuffle.study.size import check_size
from simshuffle.study.standing import Progress, StageWatch, WorkDone, listening
from simshuffle.study.store import Lost, Memory, Store
from simshuffle.study.study import Meta, Request, Result, Study, code, fingerprint, versions

V = TypeVar("V")


class Interrupted(KeyboardInterrupt):
    """Stopped by Ctrl-C or SIGTERM; ``done`` of ``total`` cells are kept, up to the stage that was
    at work. Of a study with partial results ``result`` is what is there, if it is any."""

    def __init__(self, done: int, total: int, result: Result | None = None) -> None:
        self.done, self.total, self.result = done, total, result
        super().__init__(f"{done} of {total}")


def run(
    study: Study[V],
    request: Request[V],
    executor: Executor | None = None,
    store: Store | None = None,
    progress: Progress | None = None,
    *,
    force_size: bool = False,
) -> Result:
    """Do a study; of its cells those whose outcome is not in ``store`` yet, so a study that was
    stopped goes on. ``executor`` does them, this process if None; ``store`` keeps outcomes, in
    memory if None. Raises an InputError if the cells of a stage are too much for the machine
    (`check_size`), but for ``force_size``; SimshuffleError if a cell cannot be done without which
    there is no result, and `Interrupted` by Ctrl-C or SIGTERM; what is done is kept."""
    executor, store = executor or Here(), store or Memory()
    outcomes: dict[str, Outcome] = {}
    past = WorkDone()
    for number, stage in enumerate(study.stages):
        cells = stage(request.values, outcomes)
        digests = {name: digest_of(cell) for name, cell in cells.items()}
        try:
            later_cost = 0.0 if progress is None else study.later_cost(request.values, number)
            watching = partial(StageWatch, progress=progress, past=past, later_cost=later_cost)
            lost = _do(cells, digests, executor, store, watching, force_size)
        except Interrupted as stop:
            there = _unfinished(study, request, outcomes, cells, store) if study.partial else None
            before = len(outcomes)
            raise Interrupted(before + stop.done, before + stop.total, there) from None
        if lost and (not study.partial or len(lost) == len(cells)):
            raise _failure(lost, len(cells))
        outcomes |= _gather(cells, {n: digests[n] for n in cells if n not in lost}, store)
        outcomes |= {name: Outcome(lost=reason.why) for name, reason in lost.items()}
    with listening(progress):
        return _result(study, request, outcomes)


def _unfinished(
    study: Study[V],
    request: Request[V],
    outcomes: Mapping[str, Outcome],
    cells: Mapping[str, Cell],
    store: Store,
) -> Result | None:
    """The result as far as it is there, when the stage of ``cells`` was stopped, if anything is."""
    digests = {name: digest_of(cell) for name, cell in cells.items()}
    kept = {n: digest for n, digest in digests.items() if store.has(digest, cells[n].parts)}
    if kept or outcomes:
        with suppress(SimshuffleError):
            done = {**outcomes, **_gather(cells, kept, store)}
            return _result(study, request, done, "unfinished")
    return None


def _result(
    study: Study[V], request: Request[V], outcomes: Mapping[str, Outcome], state: str = ""
) -> Result:
    tables = study.collect(request.values, outcomes)
    files_in = {place: of(request.values, outcomes) for place, of in study.files_in.items()}
    meta: dict[str, Any] = {
        "kind": study.kind,
        "fingerprint": fingerprint(study, request),
        "code": code(study)[:12],
        "versions": versions(study.versions),
        MADE: made(),
        **request.asked,
        **study.facts(request.values, outcomes, tables),
    }
    if study.partial:
        lost = {name: outcome.lost for name, outcome in outcomes.items() if outcome.lost}
        meta |= {"lost": lost, "state": state or ("incomplete" if lost else "finished")}
    documents, inputs = dict(request.documents), dict(request.inputs)
    if counts := _counts(files_in, inputs):
        meta["files"] = counts
    return study.result(study, tables, meta, documents, files_in, inputs)


def _counts(files_in: Mapping[str, Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, int]:
    places = {**files_in, **({INPUTS: inputs} if inputs else {})}
    return {place: len(files) for place, files in places.items()}


def _do(
    cells: Mapping[str, Cell],
    digests: Mapping[str, str],
    executor: Executor,
    store: Store,
    watching: Callable[[Mapping[str, Cell], int], StageWatch],
    force_size: bool,
) -> dict[str, Lost]:
    """Do the cells that are not in the store; return those without an outcome, by name.

    ``watching`` makes what follows the cells that are missing, beside a number that were kept.
    """
    missing = {
        digest: cells[name]
        for name, digest in digests.items()
        if not store.has(digest, cells[name].parts)
    }
    if missing and not force_size:
        check_size(missing.values(), executor.room())
    kept = len(set(digests.values())) - len(missing)
    watch = watching(missing, kept)
    try:
        with handled(interrupt, signal.SIGTERM):
            for _ in executor.do(missing, store, watch) if missing else ():
                pass
    except KeyboardInterrupt:
        # a worker may have written an outcome of which this process has not heard
        done = kept + sum(store.has(digest, cell.parts) for digest, cell in missing.items())
        raise Interrupted(done, kept + len(missing)) from None
    lost = executor.lost
    return {name: lost[digest] for name, digest in digests.items() if digest in lost}


def _gather(
    cells: Mapping[str, Cell], digests: Mapping[str, str], store: Store
) -> dict[str, Outcome]:
    """The outcomes of cells that are done; a SimulationError if one is damaged, and removed."""
    found: dict[str, Outcome] = {}
    damaged = []
    for name, digest in digests.items():
        if outcome := store.get(digest, cells[name].parts):
            found[name] = outcome
        else:  # has() looked at the entry alone: what it names is not as written
            store.forget(digest)
            damaged.append(name)
    if damaged:
        raise SimulationError(
            f"Stored outcomes are damaged: {', '.join(damaged)}. They are removed; give the same"
            " command again."
        )
    return found


def _failure(lost: Mapping[str, Lost], total: int) -> SimshuffleError:
    """The error of a study that has no result without the cells in ``lost``."""
    errors = [reason.error for reason in lost.values() if reason.error is not None]
    found = [error.problems if isinstance(error, InputError) else [error] for error in errors]
    if len(errors) == len(lost) and all(problems == found[0] for problems in found):
        return errors[0]  # what is wrong is what all of them share
    lines = [f"  - {name}: {reason.why}" for name, reason in lost.items()]
    return SimulationError("\n".join([f"{len(lost)} of {total} could not be done:", *lines]))


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a result folder for this process, for two commands that write to one place would replace
    each other's result; an InputError if another process holds it. What was made for it and stays
    empty is removed."""
    new = [place for place in folder.parents if not place.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f".{folder.name}.lock")
    try:
        with path.open("w") as lock:
            if not _claimed(lock, path):
                rule, remedy = "another process is at work in it", "Wait until it has ended."
                refuse("--out", rule, str(folder), remedy, "result folder")
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
    finally:
        for place in new:
            with suppress(OSError):  # it holds something now
                place.rmdir()


def _claimed(lock: IO[str], path: Path) -> bool:
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # whoever held it before may have removed it after it was opened here
        return path.exists() and os.path.samestat(os.fstat(lock.fileno()), path.stat())
    return False


def existing(study: Study[V], folder: Path, wanted: str) -> Result | None:
    """The result in ``folder`` if it is whole and has the fingerprint ``wanted``; else None."""
    meta = meta_of(folder)
    if (meta.get("kind"), meta.get("fingerprint")) != (study.kind, wanted) or not _whole(meta):
        return None
    if not all((folder / name).is_file() for name in study.files):
        return None
    with suppress(InputError):
        result = read(study, folder)
        there = _counts(result.files_in, result.inputs) == meta.get("files", {})
        return result if there else None
    return None


def _whole(meta: Mapping[str, Any]) -> bool:
    """Whether nothing of the result is lost or still to be done."""
    return meta.get("state", "finished") == "finished" and not meta.get("lost")


def goes_on(folder: Path, wanted: str) -> bool:
    """Whether ``folder`` holds a result of fingerprint ``wanted`` of which something is lost or
    still to be done: it may be replaced by more of the same."""
    meta = meta_of(folder)
    return meta.get("fingerprint") == wanted and not _whole(meta)


def read(study: Study[Any], folder: Path) -> Result:
    """The result of that study in ``folder``; an InputError if it is of another kind, or a file is
    missing, damaged, or not as its schema wants it."""
    meta = meta_of(folder)
    missing = [name for name in study.files if not (folder / name).is_file()]
    if missing or meta.get("kind") != study.kind:
        what = f"no {', '.join(missing)}" if missing else f"kind {meta.get('kind')!r}"
        rule = f"must be the result of 'simshuffle {study.verb or study.kind}'"
        refuse("", rule, what, REMEDY, str(folder))
    if problems := _faults(study, meta):
        raise InputError(problems, str(folder))
    tables: dict[str, Table] = {}
    schemas = study.schemas(meta)
    for name in study.stored:
        try:
            tables[name] = schemas[name].read(folder / name)
        except InputError as error:
            problems += error.problems
    documents = {}
    for name in study.documents:
        try:
            documents[name] = (folder / name).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            problems.append(Problem(name, "cannot be read", str(error), REMEDY))
    if not problems:
        files_in = {place: _files(folder / place) for place in study.files_in}
        inputs = {name: folder / INPUTS / name for name in _files(folder / INPUTS)}
        result = study.result(study, LazyTables(tables), meta, documents, files_in, inputs)
        problems += study.faults(result)
    if problems:
        raise InputError(problems, str(folder))
    return result


class _Meta(TypedDict):
    kind: str
    fingerprint: str
    code: NotRequired[str]
    versions: dict[str, str]
    made: NotRequired[dict[str, Any]]


def _faults(study: Study[Any], meta: Meta) -> list[Problem]:
    problems = []
    for kind in (_Meta, study.says):
        try:
            TypeAdapter(kind).validate_python(dict(meta))
        except ValidationError as error:
            for found in error.errors(include_url=False):
                key = ".".join(map(str, found["loc"]))
                given = repr(found["input"])[:60]
                problems.append(Problem(f"meta.json: {key}", found["msg"], given, REMEDY))
    return problems + [
        Problem(f"meta.json: {key}", f"must be within ±{most:g}", repr(number)[:60], REMEDY)
        for key, number in _numbers(meta)
        for most in [MOST if isinstance(number, int) else LARGEST]
        if abs(number) > most
    ]


def _numbers(value: Any, key: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, int | float):
        yield key, value
    elif isinstance(value, Mapping | list):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, each in items:
            yield from _numbers(each, f"{key}.{name}" if key else str(name))


def _files(folder: Path) -> dict[str, bytes | Path]:
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return {path.name: path for path in found if path.is_file()}


MADE = "made"  # its key in ``meta.json``
_PATIENCE_S = 5.0


def made() -> dict[str, Any]:
    """How a result was made: command, date (UTC), machine, and the commit of the working directory
    if there is one; it ends in '-dirty' where files in it are changed. It says nothing of what the
    result is, so no fingerprint has it, and comparisons of two results leave it out."""
    program, *words = sys.argv or [""]
    name = Path(program).name
    commit = _commit()
    return {
        "command": shlex.join(["simshuffle" if name == "__main__.py" else name, *words]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **({"commit": commit} if commit else {}),
        "machine": {
            "processor": _processor(),
            "cores": usable_cores(),
            "platform": platform.platform(),
        },
    }


def _commit() -> str:
    """'' without git, or outside a repository."""
    words = ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            ["git", "-c", "core.fsmonitor=false", *words],  # noqa: S607 - the git of the user
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()
