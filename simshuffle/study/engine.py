"""Run the cells of a request, collect their outcomes to a result, and read results from
folders.

Outcomes that are in the store already are not computed again.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NotRequired, TypeVar

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from simshuffle.errors import (
    InputError,
    Problem,
    SimshuffleError,
    SimulationError,
    refuse,
)
from simshuffle.report.columns import MAX_COUNT
from simshuffle.report.folders import INPUTS, meta_of
from simshuffle.study.cell import Cell, Outcome, digest_of
from simshuffle.study.executors import Executor, SerialExecutor
from simshuffle.study.long_table import LazyTables, Table
from simshuffle.study.origin import MADE, describe_origin
from simshuffle.study.schema import LARGEST, REMEDY, find_missing_files
from simshuffle.study.server import handle_signals, interrupt
from simshuffle.study.size import check_size
from simshuffle.study.standing import Progress, StageWatch, WorkDone, listen_to_progress
from simshuffle.study.store import Lost, Memory, Store
from simshuffle.study.study import (
    Meta,
    Request,
    Result,
    Study,
    code_of_study,
    fingerprint,
    versions,
)

V = TypeVar("V")


class Interrupted(KeyboardInterrupt):
    """Stopped by Ctrl-C or SIGTERM.

    Attributes:
        done: number of cells whose outcomes are stored, up to the stage that was
            running.
        total: number of cells of these stages.
        result: of a study with partial results, the result so far; None if there is
            none.
    """

    def __init__(self, done: int, total: int, result: Result | None = None) -> None:
        self.done = done
        self.total = total
        self.result = result
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
    """Run a study's cells that are not in ``store`` yet, and collect the result.

    A stage begins when the one before has ended. Within a stage SIGTERM counts as
    Ctrl-C. Cells may be lost where ``study.partial`` holds and not every cell of a
    stage is lost. No folder is written.

    Args:
        executor: runs the cells; this process if None.
        store: keeps outcomes; in memory if None.
        progress: told how far the cells are; nobody if None.

    Raises:
        InputError: the cells of a stage are too much for the machine (`check_size`),
            unless ``force_size``.
        SimshuffleError: stored outcomes are damaged, or cells are lost without which
            there is no result.
        Interrupted: by Ctrl-C or SIGTERM; finished outcomes stay in the store.
    """
    executor = executor or SerialExecutor()
    store = store or Memory()
    outcomes: dict[str, Outcome] = {}
    work_done = WorkDone()
    for stage_index, stage in enumerate(study.stages):
        cells = stage(request.values, outcomes)
        digests = {name: digest_of(cell) for name, cell in cells.items()}
        try:
            later_cost = (
                0.0
                if progress is None
                else study.later_cost(request.values, stage_index)
            )
            make_watch = partial(
                StageWatch, progress=progress, past=work_done, later_cost=later_cost
            )
            lost = _run_missing_cells(
                cells,
                digests,
                executor,
                store,
                make_watch=make_watch,
                force_size=force_size,
            )
        except Interrupted as stop:
            partial_result = (
                _collect_partial_result(study, request, outcomes, cells, store)
                if study.partial
                else None
            )
            num_previous = len(outcomes)
            raise Interrupted(
                num_previous + stop.done, num_previous + stop.total, partial_result
            ) from None
        if lost and (not study.partial or len(lost) == len(cells)):
            raise _error_of_lost_cells(lost, len(cells))
        outcomes |= _load_outcomes(
            cells, {n: digests[n] for n in cells if n not in lost}, store
        )
        outcomes |= {name: Outcome(lost=reason.cause) for name, reason in lost.items()}
    with listen_to_progress(progress):
        return _collect_result(study, request, outcomes)


def _collect_partial_result(
    study: Study[V],
    request: Request[V],
    outcomes: Mapping[str, Outcome],
    cells: Mapping[str, Cell],
    store: Store,
) -> Result | None:
    """Return the result of the outcomes that exist when a stage was stopped.

    ``cells`` are those of that stage; the state of the result is 'unfinished'. None if
    there are no outcomes, or the study cannot make a result of them.
    """
    digests = {name: digest_of(cell) for name, cell in cells.items()}
    stored_digests = {
        name: digest
        for name, digest in digests.items()
        if store.has(digest, cells[name].parts)
    }
    if stored_digests or outcomes:
        with suppress(SimshuffleError):
            finished_outcomes = {
                **outcomes,
                **_load_outcomes(cells, stored_digests, store),
            }
            return _collect_result(study, request, finished_outcomes, "unfinished")
    return None


def _collect_result(
    study: Study[V],
    request: Request[V],
    outcomes: Mapping[str, Outcome],
    state: str = "",
) -> Result:
    """Collect outcomes to a result, with its ``meta.json``.

    A study with partial results has ``state`` in it; '' stands for 'incomplete' if
    cells are lost, else for 'finished'. Facts replace ``request.asked`` of equal keys.
    """
    tables = study.collect(request.values, outcomes)
    files_in = {
        place: make_files(request.values, outcomes)
        for place, make_files in study.files_in.items()
    }
    meta: dict[str, Any] = {
        "kind": study.kind,
        "fingerprint": fingerprint(study, request),
        "code": code_of_study(study)[:12],
        "versions": versions(study.versions),
        MADE: describe_origin(),
        **request.asked,
        **study.facts(request.values, outcomes, tables),
    }
    if study.partial:
        lost = {
            name: outcome.lost for name, outcome in outcomes.items() if outcome.lost
        }
        meta |= {"lost": lost, "state": state or ("incomplete" if lost else "finished")}
    documents = dict(request.documents)
    inputs = dict(request.inputs)
    if counts := _count_files(files_in, inputs):
        meta["files"] = counts
    return study.result(study, tables, meta, documents, files_in, inputs)


def _count_files(
    files_in: Mapping[str, Mapping[str, Any]], inputs: Mapping[str, Any]
) -> dict[str, int]:
    """Count the files of a result by folder; `INPUTS` is left out if it has none."""
    folders = {**files_in, **({INPUTS: inputs} if inputs else {})}
    return {folder: len(files) for folder, files in folders.items()}


def _run_missing_cells(
    cells: Mapping[str, Cell],
    digests: Mapping[str, str],
    executor: Executor,
    store: Store,
    *,
    make_watch: Callable[[Mapping[str, Cell], int], StageWatch],
    force_size: bool,
) -> dict[str, Lost]:
    """Run the cells that are not in the store; return those that are lost, by name.

    ``make_watch`` takes the missing cells by digest and the number of stored ones, and
    returns the watch that follows them.

    Raises:
        InputError: the cells are too much for the machine, unless ``force_size``.
        Interrupted: by Ctrl-C or SIGTERM, with the number of cells of this stage that
            are done.
    """
    missing = {
        digest: cells[name]
        for name, digest in digests.items()
        if not store.has(digest, cells[name].parts)
    }
    if missing and not force_size:
        check_size(missing.values(), executor.resources())
    num_stored = len(set(digests.values())) - len(missing)
    watch = make_watch(missing, num_stored)
    try:
        with handle_signals(interrupt, signal.SIGTERM):
            for _ in executor.do(missing, store, watch) if missing else ():
                pass
    except KeyboardInterrupt:
        # a worker may have written an outcome of which this process has not heard
        num_done = num_stored + sum(
            store.has(digest, cell.parts) for digest, cell in missing.items()
        )
        raise Interrupted(num_done, num_stored + len(missing)) from None
    lost = executor.lost
    return {name: lost[digest] for name, digest in digests.items() if digest in lost}


def _load_outcomes(
    cells: Mapping[str, Cell], digests: Mapping[str, str], store: Store
) -> dict[str, Outcome]:
    """Load the outcomes of cells from the store, by the names of the cells.

    Raises:
        SimulationError: outcomes are damaged; they are removed from the store.
    """
    outcomes: dict[str, Outcome] = {}
    damaged = []
    for name, digest in digests.items():
        if outcome := store.get(digest, cells[name].parts):
            outcomes[name] = outcome
        else:  # has() looked at the entry alone: what it names is not as written
            store.forget(digest)
            damaged.append(name)
    if damaged:
        raise SimulationError(
            f"Stored outcomes are damaged: {', '.join(damaged)}. They are removed; give the same"
            " command again."
        )
    return outcomes


def _error_of_lost_cells(lost: Mapping[str, Lost], total: int) -> SimshuffleError:
    """Return the error of a study that has no result without the cells in ``lost``.

    It is that of the cells if all raised an equal one, else one that lists all causes.
    """
    errors = [reason.error for reason in lost.values() if reason.error is not None]
    problems_of_cells = [
        error.problems if isinstance(error, InputError) else [error] for error in errors
    ]
    if len(errors) == len(lost) and all(
        problems == problems_of_cells[0] for problems in problems_of_cells
    ):
        return errors[0]  # what is wrong is what all of them share
    lines = [f"  - {name}: {reason.cause}" for name, reason in lost.items()]
    return SimulationError(
        "\n".join([f"{len(lost)} of {total} could not be done:", *lines])
    )


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Hold a result folder for this process, by a lock file `.NAME.lock` beside it.

    Two commands that write to one folder would replace each other's result. The lock
    file is removed at the end, and so are folders above that were made for it and stay
    empty.

    Raises:
        InputError: another process holds it.
    """
    new_folders = [parent for parent in folder.parents if not parent.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f".{folder.name}.lock")
    try:
        with path.open("w") as lock:
            if not _lock_file(lock, path):
                rule = "is in use by another process"
                remedy = "Wait until that process has ended."
                refuse("--out", rule, str(folder), remedy, "result folder")
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
    finally:
        for new_folder in new_folders:
            with suppress(OSError):  # it holds something now
                new_folder.rmdir()


def _lock_file(lock: IO[str], path: Path) -> bool:
    """Take the lock of a result folder; False if another process holds it, or the file
    system has no locks.
    """
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # whoever held it before may have removed it after it was opened here
        return path.exists() and os.path.samestat(os.fstat(lock.fileno()), path.stat())
    return False


def find_complete_result(
    study: Study[V], folder: Path, expected_fingerprint: str
) -> Result | None:
    """Return the result in ``folder``, or None if it does not answer the request.

    It does if it is of that kind, finished, without lost cells, has that fingerprint,
    can be read, and no file is missing.
    """
    meta = meta_of(folder)
    if (
        meta.get("kind") != study.kind
        or meta.get("fingerprint") != expected_fingerprint
    ):
        return None
    if not _is_complete(meta):
        return None
    if not all((folder / name).is_file() for name in study.files):
        return None
    with suppress(InputError):
        result = read(study, folder)
        is_complete = _count_files(result.files_in, result.inputs) == meta.get(
            "files", {}
        )
        return result if is_complete else None
    return None


def _is_complete(meta: Mapping[str, Any]) -> bool:
    """Return whether a result has no lost cells and none still to be run."""
    return meta.get("state", "finished") == "finished" and not meta.get("lost")


def is_continuable(folder: Path, expected_fingerprint: str) -> bool:
    """Return whether a result with more cells may replace the one in ``folder``.

    It may if that is unfinished or incomplete, and has that fingerprint.
    """
    meta = meta_of(folder)
    return meta.get("fingerprint") == expected_fingerprint and not _is_complete(meta)


def read(study: Study[Any], folder: Path) -> Result:
    """Read the result of a study from ``folder``; derived tables are not read.

    Raises:
        InputError: the result is of another kind, or a file is missing, damaged, or not
            as its schema requires.
    """
    meta = meta_of(folder)
    missing = find_missing_files(folder, study.files, study.stored)
    if missing or meta.get("kind") != study.kind:
        value = f"no {', '.join(missing)}" if missing else f"kind {meta.get('kind')!r}"
        rule = f"must be the result of 'simshuffle {study.verb or study.kind}'"
        refuse("", rule, value, REMEDY, str(folder))
    if problems := _find_problems(study, meta):
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
        files_in = {
            subfolder: _files_in_folder(folder / subfolder)
            for subfolder in study.files_in
        }
        inputs = {
            name: folder / INPUTS / name for name in _files_in_folder(folder / INPUTS)
        }
        result = study.result(
            study, LazyTables(tables), meta, documents, files_in, inputs
        )
        problems += study.faults(result)
    if problems:
        raise InputError(problems, str(folder))
    return result


class _Meta(TypedDict):
    """The keys that ``meta.json`` of every result has."""

    kind: str
    fingerprint: str
    code: NotRequired[str]
    versions: dict[str, str]
    made: NotRequired[dict[str, Any]]


def _find_problems(study: Study[Any], meta: Meta) -> list[Problem]:
    """Return the problems of ``meta.json``; [] if there are none.

    They are missing keys, values of wrong types, and numbers that are too large. Keys
    that no type names are not checked for more than their numbers.
    """
    problems = []
    for kind in (_Meta, study.says):
        try:
            TypeAdapter(kind).validate_python(dict(meta))
        except ValidationError as error:
            for error_facts in error.errors(include_url=False):
                key = ".".join(map(str, error_facts["loc"]))
                value = repr(error_facts["input"])[:60]
                problems.append(
                    Problem(f"meta.json: {key}", error_facts["msg"], value, REMEDY)
                )
    return problems + [
        Problem(
            f"meta.json: {key}", f"must be within ±{limit:g}", repr(number)[:60], REMEDY
        )
        for key, number in _walk_numbers(meta)
        for limit in [MAX_COUNT if isinstance(number, int) else LARGEST]
        if abs(number) > limit
    ]


def _walk_numbers(value: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """Yield dotted key and value of every number in nested plain values."""
    if isinstance(value, int | float):
        yield key, value
    elif isinstance(value, Mapping | list):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, element in items:
            yield from _walk_numbers(element, f"{key}.{name}" if key else str(name))


def _files_in_folder(folder: Path) -> dict[str, bytes | Path]:
    """Return the paths of the files in ``folder`` by name; {} if it is missing."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return {path.name: path for path in paths if path.is_file()}
