"""Find the result of a request or make it: what verbs and functions of Python have in common."""

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
from simshuffle.study.executors import Executor, Local
from simshuffle.study.options import COMMAND_LINE, CellOptions, Options
from simshuffle.study.standing import Shown, plural, share_shown
from simshuffle.study.store import CELLS, Disk, Memory, Store
from simshuffle.study.study import Request, Result, Study, fingerprint, versions
from simshuffle.study.verb import Verb

Tell = Callable[[str], None]
FIRST_ANSWER = "First answer, from closed forms; a simulation refines it:"
BY_NAME = {"run", "train"}
"""Verbs whose folders are called by the name of the scenario or study alone."""


@dataclass(frozen=True)
class Teller:
    """Who is told what happens meanwhile; nobody by default."""

    say: Tell = lambda text: None  # what everybody should know
    detail: Tell = lambda text: None  # what few want to know
    # shows how far the cells are, which are called by the noun that it is given
    progress: Shown = lambda noun: nullcontext(None)


_teller: ContextVar[Teller] = ContextVar("teller", default=Teller())  # noqa: B039 - frozen


@dataclass(frozen=True)
class Performance:
    """A request that is met."""

    verb: Verb[Any]  # by which it was asked for
    options: Options
    # who is told what happens; whoever is told of the one that needs this one, if None
    told: Teller | None = None
    kept: bool = True  # whether there is a result folder if none is named

    @property
    def teller(self) -> Teller:
        """Who is told."""
        return self.told or _teller.get()

    def result(self) -> tuple[Result, Path | None]:
        """The result, and its folder if it has one. Raises SimshuffleError if what is asked is not
        valid, the folder cannot be used, or the study fails; Stopped if some of it is kept."""
        before = _teller.set(self.teller)
        # the folder is held while something is measured for it
        out = self.options.out if self.verb.measures else None
        try:
            with engine.alone(out) if out else nullcontext():
                result, folder = self.of(*self.verb.make_request(self.options))
            for line in self.verb.also(result, self.options):
                self.teller.say(line)
            return result, folder
        finally:
            _teller.reset(before)

    def of(self, study: Study[Any], request: Request[Any]) -> tuple[Result, Path | None]:
        """The same of a request that is made already."""
        if request.about:
            self.teller.say(request.about)
        wanted = fingerprint(study, request)
        folder = self._folder(study, request, wanted)
        known = versions(study.versions)
        self.teller.detail(", ".join(f"{name} {known[name]}" for name in study.versions))
        self.teller.detail(f"fingerprint {wanted}, result folder {folder or 'none'}")
        if folder is None:
            self._say_first_answer(request)
            return self._unkept(study, request), None
        found = None if self.options.force else engine.existing(study, folder, wanted)
        if found is not None:
            self.teller.say(f"{folder} already holds this result; nothing was {self.verb.done}.")
            return found, folder
        self._say_first_answer(request)
        return self._made(study, request, folder, wanted), folder

    def _say_first_answer(self, request: Request[Any]) -> None:
        """Say the answer from closed forms, marked as such, before anything is simulated."""
        lines = list(self.verb.answer_first(self.options, request))
        if lines:
            self.teller.say(FIRST_ANSWER)
        for line in lines:
            self.teller.say(f"  {line}")

    def _folder(self, study: Study[Any], request: Request[Any], wanted: str) -> Path | None:
        """Where the result is kept: where that was asked for, or in a folder of its own name."""
        if self.options.out is not None or not (self.kept and self.verb.kept):
            return self.options.out
        plain, word = request.name.replace("/", "-"), study.verb.split()[-1]
        name = f"{plain}-{wanted}" if word in BY_NAME else f"{word}-{plain}-{wanted}"
        return Path("results") / name

    def _made(self, study: Study[Any], request: Request[Any], folder: Path, wanted: str) -> Result:
        replace = self.options.force or engine.goes_on(folder, wanted)
        # before a long simulation, not after it
        check_place(folder, replace=replace, known=study.names)
        held = self.verb.measures and self.options.out is not None
        with nullcontext() if held else engine.alone(folder):
            store = self._store(study, request, Disk((folder.parent / CELLS).absolute()))
            try:
                result = self._done(study, request, store)
                result.save(folder, replace=replace)
            except engine.Interrupted as stop:
                if not stop.done:
                    raise
                empty = not folder.exists() or not any(folder.iterdir())
                if stop.result and (empty or engine.goes_on(folder, wanted)):
                    stop.result.save(folder, replace=True, draw=False)  # at once; plot draws it
                rest = "are kept; the same command goes on with them."
                cells = f"{stop.done} of {stop.total} {plural(self.verb.noun)}"
                raise Stopped(f"Interrupted. {cells} {rest}") from None
        return result

    def _unkept(self, study: Study[Any], request: Request[Any]) -> Result:
        """A result without a folder: what its cells leave behind goes with it."""
        place = Path(tempfile.mkdtemp(prefix="simshuffle-"))
        try:
            result = self._done(study, request, self._store(study, request, Disk(place)))
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        weakref.finalize(result, shutil.rmtree, place, ignore_errors=True)
        return result

    def _done(self, study: Study[Any], request: Request[Any], store: Store) -> Result:
        executor = self._executor(1 if request.one_device else None)
        with self.teller.progress(self.verb.noun) as progress:
            force_size = self.options.force_size
            return engine.run(study, request, executor, store, progress, force_size=force_size)

    def _executor(self, at_once: int | None) -> Executor:
        if not isinstance(self.options, CellOptions):
            return Local(at_once)
        if self.options.scheduler is None:
            return Local(self.options.processes or at_once)
        try:
            from simshuffle.study.cluster import DaskCluster  # noqa: PLC0415 - an extra
        except ImportError:
            rule, remedy = "needs the package distributed", "pip install 'simshuffle[cluster]'"
            refuse("--scheduler", rule, self.options.scheduler, remedy, COMMAND_LINE)
        return DaskCluster(self.options.scheduler)

    def _store(self, study: Study[Any], request: Request[Any], disk: Disk) -> Store:
        """On disk; in memory for a study of a single cell, whose result is its only outcome."""
        if not study.stages:
            return Memory()
        cells = list(study.stages[0](request.values, {}).values())
        kept = 0
        for cell in cells:
            there = disk.has(digest_of(cell), cell.parts)
            kept += there
            state = "is there already" if there else "to be done"
            self.teller.detail(f"{self.verb.noun} {cell.label}: {state}")
        if kept:
            self.teller.say(f"{kept} of {len(cells)} {plural(self.verb.noun)} are there already.")
        single = len(study.stages) == 1 and len(cells) <= 1 and not study.partial
        elsewhere = isinstance(self.options, CellOptions) and self.options.scheduler is not None
        return Memory() if single and not kept and not elsewhere else disk


def share_told(noun: str) -> AbstractContextManager[Callable[[float], None] | None]:
    """`simshuffle.study.standing.share_shown` for whoever is told now."""
    return share_shown(noun, _teller.get().progress)
