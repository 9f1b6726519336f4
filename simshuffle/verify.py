"""A result done again from its folder, and compared with what the folder holds."""

from __future__ import annotations

import tempfile
from pathlib import Path

from simshuffle.compare import Comparison, Side, compare, side
from simshuffle.errors import InputError, Problem
from simshuffle.studies import read_folder
from simshuffle.study import engine
from simshuffle.study.executors import Executor
from simshuffle.study.long_table import long, same
from simshuffle.study.standing import Progress
from simshuffle.study.store import CELLS, Disk


def verify(
    folder: Path, executor: Executor | None = None, progress: Progress | None = None
) -> tuple[list[str], Comparison]:
    """Do again what is in a result folder, from what it holds.

    Returns:
        What is not the same: the fingerprint, and names of tables of which a value differs in its
        last bit; and the comparison of the stored result, A, with the new one, B.

    Raises:
        InputError: the folder holds no whole result of 'run' or 'sweep'.
        SimshuffleError: it cannot be done again.
    """
    result = read_folder(folder)
    if result.study.again is None:
        rule = "must hold a result of 'simshuffle run' or 'simshuffle sweep'"
        remedy = "Give the command in its meta.json again, and compare the two."
        raise InputError(Problem("", rule, result.study.kind, remedy), str(folder))
    if result.meta.get("state", "finished") != "finished":
        problem = Problem("", "must be finished", result.meta["state"], "Finish it first.")
        raise InputError(problem, str(folder))
    request = result.study.again(folder, result.meta)
    # a store that processes share; and both are written and read
    with tempfile.TemporaryDirectory(prefix="simshuffle-") as place:
        store = Disk(Path(place) / CELLS)
        fresh = engine.run(result.study, request, executor, store, progress)
        again = engine.read(result.study, fresh.save(Path(place) / "again", draw=False))
        differ = [
            name
            for name in result.tables
            if not same(long(result.tables, name), long(again.tables, name))
        ]
        if result.meta["fingerprint"] != again.meta["fingerprint"]:
            differ.insert(0, "fingerprint")
        stored = side(str(folder))
        return differ, compare(stored, Side("done again", stored.asked, again))
