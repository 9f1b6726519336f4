"""A study in one file: squares of numbers, and their running sum in a second stage. Some numbers
fail, kill their process, or take long, as the tests want it."""

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.errors import SimulationError
from simshuffle.report.chart import Chart, Look, Mark, Panel
from simshuffle.study.cell import Outcome, PlainCell, Tell
from simshuffle.study.schema import Schema, count, real, share, text
from simshuffle.study.study import Derived, Outcomes, Request, Result, Study, Tables


@dataclass(frozen=True)
class Square(PlainCell):
    """The square of a number, as a value, a table and a file.

    ``mark`` names a folder in which every attempt leaves a file; ``fails``, ``dies`` and
    ``seconds`` say what goes wrong, and are no part of the key.
    """

    number: int
    mark: Path | None = None
    fails: bool = False
    dies: bool = False
    seconds: float = 0.0
    bytes_needed: float = 1e6

    @property
    def key(self) -> Any:
        return {"number": self.number}

    @property
    def label(self) -> str:
        return f"number {self.number}"

    @property
    def cost(self) -> float:
        return 10.0 + self.number

    @property
    def memory(self) -> float:
        return self.bytes_needed

    @property
    def parts(self) -> frozenset[str]:
        return frozenset({"steps.parquet", "note.bin"})

    def run(self, tell: Tell) -> Outcome:
        begun = time.time()
        if self.mark is not None:
            (self.mark / f"{self.number}-{time.time_ns()}-{os.getpid()}").touch()
        if self.fails:
            raise SimulationError(f"{self.number} cannot be squared")
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        self._wait()
        tell(0.5)
        square = self.number**2
        steps = pd.DataFrame({"step": np.arange(3), "value": np.linspace(0.1, square / 3, 3)})
        if self.mark is not None:
            (self.mark / f"ended-{self.number}-{begun}-{time.time()}").touch()
        return Outcome(
            {"square": square}, {"steps": steps}, {"note.bin": bytes([self.number % 256])}
        )

    def _wait(self) -> None:
        """With a file that is there meanwhile, as a draft of an outcome is."""
        part = self.mark / f"ended-part-{self.number}" if self.mark is not None else None
        try:
            if part is not None:
                part.touch()
            time.sleep(self.seconds)
        finally:
            if part is not None:
                part.unlink()


@dataclass(frozen=True)
class Sum(PlainCell):
    """The sum of squares that the stage before has found."""

    squares: tuple[int, ...]

    @property
    def key(self) -> Any:
        return list(self.squares)

    @property
    def label(self) -> str:
        return "sum"

    def run(self, tell: Tell) -> Outcome:
        return Outcome({"sum": sum(self.squares)})


@dataclass(frozen=True)
class Numbers:
    """What is asked: cells by name."""

    cells: dict[str, Square] = field(default_factory=dict)


def _squares(asked: Numbers, outcomes: Outcomes) -> dict[str, Square]:
    return dict(asked.cells)


def _sum(asked: Numbers, outcomes: Outcomes) -> dict[str, Sum]:
    return {"sum": Sum(tuple(outcomes[name].values["square"] for name in _found(asked, outcomes)))}


def _found(asked: Numbers, outcomes: Outcomes) -> list[str]:
    return [name for name in asked.cells if name in outcomes and not outcomes[name].lost]


def _collect(asked: Numbers, outcomes: Outcomes) -> Tables:
    names = _found(asked, outcomes)
    squares = [outcomes[name].values["square"] for name in names]
    first = [float(outcomes[name].tables["steps"]["value"].iloc[1]) for name in names]
    table = pd.DataFrame({"name": names, "square": squares, "third": first})
    return {"squares": table, "sums": pd.DataFrame({"sum": [outcomes["sum"].values["sum"]]})}


def _halves(result: Result) -> pd.DataFrame:
    squares = result.tables["squares"]["square"]
    return pd.DataFrame({"share": squares / max(squares.sum(), 1)})


def _figures(result: Result) -> dict[str, Chart]:
    squares = result.tables["squares"].reset_index(names="x")
    line = Mark("line", squares, y="square", look=Look("square"))
    return {"squares": Chart([Panel([line])], 2.0)}


TOY: Study[Numbers] = Study(
    kind="toy",
    verb="toy",
    stages=(_squares, _sum),
    collect=_collect,
    stored={
        "squares": Schema(
            {"name": text("of the number"), "square": count("of it"), "third": real("a step")}
        ),
        "sums": Schema({"sum": count("of all squares")}, ".parquet"),
    },
    documents=("numbers.txt",),
    derived={"shares": Derived(Schema({"share": share("of the sum")}), _halves)},
    texts={"report.txt": lambda result: f"{len(result.tables['squares'])} squares\n"},
    figures=_figures,
    parts=lambda result: ["squares"],
)
STUDY = TOY


def asked(*cells: Square) -> Request[Numbers]:
    """A request for those squares."""
    by_name = {f"n{cell.number}": cell for cell in cells}
    return Request(
        "toy", Numbers(by_name), {"numbers.txt": " ".join(by_name)}, {"count": len(cells)}
    )
