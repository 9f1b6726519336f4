"""One input after the other through a reader: what becomes of each, and where faults come from."""

import random
import signal
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from simshuffle.errors import SimshuffleError
from simshuffle.report import canvas
from tests.fuzz.readers import Input, Reader

ACCEPTED, REFUSED, FAULT, SLOW = "accepted", "refused", "FAULT", "too slow"
OUTCOMES = (ACCEPTED, REFUSED, FAULT, SLOW)
LIMIT = 10.0
"""Seconds of processor time that an input may take; a usual one takes some milliseconds."""


class Fault(NamedTuple):
    """An input that ended in something else than an answer or a refusal.

    Attributes:
        reader: its name.
        number: of the input.
        what: the type of the exception.
        where: file, line and function of the package that it came from.
        input: what was read.
    """

    reader: str
    number: int
    what: str
    where: str
    input: Input

    @property
    def size(self) -> int:
        """Bytes of the input."""
        files = sum(len(content or b"") for content in self.input.files.values())
        return files + sum(map(len, self.input.arguments))


class Report(NamedTuple):
    """Inputs of a reader by outcome, and its faults."""

    counts: Counter[str]
    faults: list[Fault]


class TooSlowError(BaseException):
    """The time of an input is over; no reader catches it as one of its own."""


def tried(
    name: str,
    reader: Reader,
    numbers: range,
    folder: Path,
    seed: int = 0,
    tell: Callable[[int], object] = lambda number: None,
) -> Report:
    """Put the inputs of those ``numbers`` through a reader, in ``folder``, which is prepared."""
    report = Report(Counter(), [])
    with _quiet(), _watched():
        for number in numbers:
            tell(number)
            given = reader.draw(random.Random(f"{seed} {name} {number}"), folder)
            # the first one loads what the others have
            limit = LIMIT if report.counts else 20 * LIMIT
            outcome, error = _outcome(reader, folder, given, limit)
            report.counts[outcome] += 1
            if error is not None:
                what, where = type(error).__name__, _place(error)
                report.faults.append(Fault(name, number, what, where, given))
    return report


def _outcome(
    reader: Reader, folder: Path, given: Input, limit: float
) -> tuple[str, BaseException | None]:
    with _laid_out(folder, given):
        try:
            signal.setitimer(signal.ITIMER_PROF, limit)
            status = reader.read(folder, given.arguments)
        except SimshuffleError:
            return REFUSED, None
        except TooSlowError as error:
            return SLOW, error
        except Exception as error:  # noqa: BLE001 - it is what is looked for
            return FAULT, error
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    return (REFUSED if status in (1, 2) else ACCEPTED), None


@contextmanager
def _laid_out(folder: Path, given: Input) -> Iterator[None]:
    """The files of an input, and what was there afterwards."""
    before: dict[Path, bytes | None] = {}
    for name, content in given.files.items():
        path = folder / name
        before[path] = path.read_bytes() if path.is_file() else None
        _put(path, content)
    try:
        yield
    finally:
        for path, content in before.items():
            _put(path, content)


def _put(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(content)


@contextmanager
def _quiet() -> Iterator[None]:
    """Figures are laid out and not written; warnings are for people."""
    with warnings.catch_warnings(), mock.patch.object(canvas, "save", _laid_out_figure):
        warnings.simplefilter("ignore")
        yield


def _laid_out_figure(figure: Any, stem: Path, about: str) -> list[Path]:
    figure.draw_without_rendering()
    return [stem]


@contextmanager
def _watched() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGPROF, late)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _place(error: BaseException) -> str:
    """Where in the package an exception comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/simshuffle/" in frame.filename] or frames
    last = ours[-1]
    return f"{last.filename.rpartition('/simshuffle/')[2]}:{last.lineno} {last.name}"
