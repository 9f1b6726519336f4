"""Find the result of a request or compute it: the common part of verbs and functions of
Python.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simshuffle.errors import Stopped, refuse
from simshuffle.report.folders import check_place
from simshuffle.study import engine
from simshuffle.study.cell import digest_of
from simshuffle.study.executors import Executor, LocalExecutor
from simshuffle.study.options import COMMAND_LINE, CellOptions, Options
from simshuffle.study.standing import ProgressDisplay, plural, show_share
from simshuffle.study.store import CELLS, Disk, Memory, Store
from simshuffle.study.study import Request, Result, Study, fingerprint, versions
from simshuffle.study.verb import Verb

Tell = Callable[[str], None]
FIRST_ANSWER = "First answer, from closed forms; a simulation refines it:"
BY_NAME = {"run", "train"}
"""Verbs whose folders are called by the name of the scenario or study alone."""


@dataclass(frozen=True)
class Teller:
    """Functions that are called with messages while a request is met; by default they
    do nothing.
    """

    say: Tell = lambda text: None  # what everybody should know
    detail: Tell = lambda text: None  # what few want to know
    # shows how far the cells are, which are called by the noun that it is given
    progress: ProgressDisplay = lambda noun: nullcontext(None)


_teller: ContextVar[Teller] = ContextVar("teller", default=Teller())  # noqa: B039 - frozen


@dataclass(frozen=True)
class Performance:
    """A request of a user, and how its result is found or computed."""

    verb: Verb[Any]  # by which it was asked for
    options: Options
    # who is told what happens; whoever is told of the one that needs this one, if None
    own_teller: Teller | None = None
    writes_folder: bool = True  # whether there is a result folder if none is named

    @property
    def teller(self) -> Teller:
        """The teller of this request, or that of the request that needs this one."""
        return self.own_teller or _teller.get()

    def result(self) -> tuple[Result, Path | None]:
        """Find or compute the result; return it, and its folder, or None if it has
        none.

        The folder of a measurement is held meanwhile. What the verb writes beside a
        result is written.

        Raises:
            SimshuffleError: the request is not valid, the folder cannot be used, or the
                study fails.
            Stopped: it was interrupted, and some outcomes are stored.
            Interrupted: it was interrupted, and no outcome is stored or there is no
                folder.
        """
        token = _teller.set(self.teller)
        # the folder is held while something is measured for it
        out = self.options.out if self.verb.measures else None
        try:
            with engine.hold_folder(out) if out else nullcontext():
                result, folder = self.perform(*self.verb.make_request(self.options))
            for line in self.verb.also(result, self.options):
                self.teller.say(line)
            return result, folder
        finally:
            _teller.reset(token)

    def perform(
        self, study: Study[Any], request: Request[Any]
    ) -> tuple[Result, Path | None]:
        """Return the result of a request that is made already, and its folder or None.

        A folder that holds the result already is read, unless ``options.force``. A new
        result is written to its folder, and outcomes of cells to `CELLS` beside it.
        What the verb writes beside a result is not written.

        Raises:
            SimshuffleError, Stopped, Interrupted: as of `result`.
        """
        if request.about:
            self.teller.say(request.about)
        expected_fingerprint = fingerprint(study, request)
        folder = self._choose_folder(study, request, expected_fingerprint)
        version_of_package = versions(study.versions)
        self.teller.detail(
            ", ".join(f"{name} {version_of_package[name]}" for name in study.versions)
        )
        self.teller.detail(
            f"fingerprint {expected_fingerprint}, result folder {folder or 'none'}"
        )
        if folder is None:
            self._say_first_answer(request)
            return self._compute_without_folder(study, request), None
        existing = (
            None
            if self.options.force
            else engine.find_complete_result(study, folder, expected_fingerprint)
        )
        if existing is not None:
            self.teller.say(
                f"{folder} already holds this result; nothing was {self.verb.done}."
            )
            return existing, folder
        self._say_first_answer(request)
        return self._compute(study, request, folder, expected_fingerprint), folder

    def _say_first_answer(self, request: Request[Any]) -> None:
        """Say the answer from closed forms, marked as such, if there is one."""
        lines = list(self.verb.answer_first(self.options, request))
        if lines:
            self.teller.say(FIRST_ANSWER)
        for line in lines:
            self.teller.say(f"  {line}")

    def _choose_folder(
        self, study: Study[Any], request: Request[Any], expected_fingerprint: str
    ) -> Path | None:
        """Return the folder of the result: the requested one, or one in ``results`` of
        the working directory, named after verb and request; None if the result has no
        folder.
        """
        if self.options.out is not None or not (self.writes_folder and self.verb.kept):
            return self.options.out
        request_name = request.name.replace("/", "-")
        verb_word = study.verb.split()[-1]
        name = (
            f"{request_name}-{expected_fingerprint}"
            if verb_word in BY_NAME
            else f"{verb_word}-{request_name}-{expected_fingerprint}"
        )
        return Path("results") / name

    def _compute(
        self,
        study: Study[Any],
        request: Request[Any],
        folder: Path,
        expected_fingerprint: str,
    ) -> Result:
        """Run the study and write its result folder.

        Raises:
            InputError: the folder holds something that may not be replaced, or another
                process holds it.
            Stopped: it was interrupted after some cells; the result so far, if there is
                one, is written, without figures, to a folder that is empty or held an
                earlier part.
            Interrupted: no cell was done.
        """
        replace = self.options.force or engine.is_continuable(
            folder, expected_fingerprint
        )
        # before a long simulation, not after it
        check_place(folder, replace=replace, known_names=study.names)
        is_held = self.verb.measures and self.options.out is not None
        with nullcontext() if is_held else engine.hold_folder(folder):
            store = self._choose_store(
                study, request, Disk((folder.parent / CELLS).absolute())
            )
            try:
                result = self._run(study, request, store)
                result.save(folder, replace=replace)
            except engine.Interrupted as stop:
                if not stop.done:
                    raise
                is_empty = not folder.exists() or not any(folder.iterdir())
                if stop.result and (
                    is_empty or engine.is_continuable(folder, expected_fingerprint)
                ):
                    stop.result.save(
                        folder, replace=True, draw=False
                    )  # at once; plot draws it
                continuation = "are kept; the same command continues from them."
                cells = f"{stop.done} of {stop.total} {plural(self.verb.noun)}"
                raise Stopped(f"Interrupted. {cells} {continuation}") from None
        return result

    def _compute_without_folder(
        self, study: Study[Any], request: Request[Any]
    ) -> Result:
        """Run the study without a result folder; the outcomes of its cells are deleted
        with the result.

        They lie in a temporary folder, which is deleted at once if the study fails or
        is interrupted.
        """
        folder = Path(tempfile.mkdtemp(prefix="simshuffle-"))
        try:
            result = self._run(
                study, request, self._choose_store(study, request, Disk(folder))
            )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        weakref.finalize(result, shutil.rmtree, folder, ignore_errors=True)
        return result

    def _run(self, study: Study[Any], request: Request[Any], store: Store) -> Result:
        """Run the study with the requested executor, and show progress."""
        executor = self._executor(1 if request.one_device else None)
        with self.teller.progress(self.verb.noun) as progress:
            force_size = self.options.force_size
            return engine.run(
                study, request, executor, store, progress, force_size=force_size
            )

    def _executor(self, at_once: int | None) -> Executor:
        """Return the executor: a Dask cluster if a scheduler is named, else this
        machine.

        With a scheduler the number of processes does not count.

        Args:
            at_once: processes where the options name no number; None for one on each
                core.

        Raises:
            InputError: the package of the cluster is not installed.
        """
        if not isinstance(self.options, CellOptions):
            return LocalExecutor(at_once)
        if self.options.scheduler is None:
            return LocalExecutor(self.options.processes or at_once)
        try:
            from simshuffle.study.cluster import DaskCluster  # noqa: PLC0415 - an extra
        except ImportError:
            rule = "needs the package distributed"
            remedy = "pip install 'simshuffle[cluster]'"
            refuse("--scheduler", rule, self.options.scheduler, remedy, COMMAND_LINE)
        return DaskCluster(self.options.scheduler)

    def _choose_store(
        self, study: Study[Any], request: Request[Any], disk: Disk
    ) -> Store:
        """Return the store of outcomes, and say how many cells are there already.

        It is ``disk``; but memory where the first stage is the only one, has a single
        cell that is not stored, and runs on this machine: its result is its only
        outcome. Studies with partial results always have ``disk``, and studies without
        stages memory.
        """
        if not study.stages:
            return Memory()
        cells = list(study.stages[0](request.values, {}).values())
        num_stored = 0
        for cell in cells:
            is_stored = disk.has(digest_of(cell), cell.parts)
            num_stored += is_stored
            state = "is there already" if is_stored else "to be done"
            self.teller.detail(f"{self.verb.noun} {cell.label}: {state}")
        if num_stored:
            self.teller.say(
                f"{num_stored} of {len(cells)} {plural(self.verb.noun)} are there already."
            )
        is_single_cell = (
            len(study.stages) == 1 and len(cells) <= 1 and not study.partial
        )
        is_remote = (
            isinstance(self.options, CellOptions) and self.options.scheduler is not None
        )
        return Memory() if is_single_cell and not num_stored and not is_remote else disk


def share_told(noun: str) -> AbstractContextManager[Callable[[float], None] | None]:
    """Report the share done of something that is no cell, as
    `simshuffle.study.standing.show_share`, to the teller of the current request.
    """
    return show_share(noun, _teller.get().progress)
