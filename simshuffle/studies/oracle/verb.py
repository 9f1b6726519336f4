"""The options of ``study oracle``: which ways to divide training, on how many GPUs,
within what memory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.job.scenario.options import ScenarioName, Set, counts_of
from simshuffle.study.options import COMMAND_LINE, CellOptions, Option, words
from simshuffle.study.verb import Verb

if TYPE_CHECKING:
    from simshuffle.study.study import Result

_PARAMETER = re.compile(r"\s*[A-Za-z_][\w.]*=")


def strategies_of(text: str) -> list[str]:
    """Parse strategies that are separated by commas, in their order.

    Parameters of one may be, too, as in ``data,pipeline:stages=4,microbatches=8``.

    Raises:
        InputError: there is none.
    """
    out: list[str] = []
    for piece in text.split(","):
        if out and _PARAMETER.match(piece):
            out[-1] += f",{piece.strip()}"
        elif piece.strip():
            out.append(piece.strip())
    if not out:
        rule = "must name one strategy or more"
        remedy = "For example data,spatial."
        refuse("--strategies", rule, repr(text), remedy, COMMAND_LINE)
    return out


def points_of(texts: Sequence[str]) -> list[tuple[str, int]]:
    """Parse strategies and world sizes that are written STRATEGY@GPUS.

    Raises:
        InputError: one is not; with all that are not.
    """
    wrong = [text for text in texts if not re.fullmatch(r".+@0*[1-9]\d*", text)]
    rule = "must be STRATEGY@GPUS"
    remedy = "For example --simulate data@64."
    if wrong:
        problems = [Problem("--simulate", rule, repr(text), remedy) for text in wrong]
        raise InputError(problems, COMMAND_LINE)
    return [
        (name, int(size)) for name, _, size in (text.rpartition("@") for text in texts)
    ]


@dataclass(frozen=True, kw_only=True)
class OracleOptions(CellOptions):
    """Find the fastest way to divide training that fits the memory.

    On how many GPUs, from 1 up to all of the machine."""

    scenario: ScenarioName
    strategies: Annotated[
        tuple[str, ...],
        Option(
            "NAME,...",
            "Ways to divide training, such as data,data+spatial,pipeline:stages=4. Default: all"
            " that may work on these numbers of GPUs.",
            read=strategies_of,
            complete=words(place="simshuffle.workload.parallelism:AnyParallelism"),
        ),
    ] = ()
    world_sizes: Annotated[
        tuple[int, ...],
        Option(
            "M,...",
            "Numbers of GPUs. Default: powers of two that machine and data set allow, the numbers"
            " of the scenario's runs, and their divisors.",
            read=counts_of("--world-sizes", "1,2,4,8"),
            many=True,
        ),
    ] = ()
    budget_memory: Annotated[
        str | None,
        Option(
            "SIZE",
            "Usable memory of a GPU. Default: as in the accelerator's name.",
        ),
    ] = None
    simulate: Annotated[
        tuple[tuple[str, int], ...],
        Option(
            "NAME@M",
            "Also simulate the step of this point, with all transfers on the cables at once.",
            read=points_of,
            many=True,
        ),
    ] = ()
    measured: Annotated[
        Path | None,
        Option(
            "FILE",
            "Measured epochs to compare with the predictions: CSV with the columns strategy,"
            " world_size and epoch_s.",
        ),
    ] = None
    set: Set = field(default_factory=dict)


def _refused(result: Result) -> Problem | None:
    """Return the problem if possible points are all over the memory budget; else None."""
    from simshuffle.studies.oracle.tables import nothing_fits  # noqa: PLC0415 - tables

    return nothing_fits(
        result.tables["points"], result.meta["says"].get("budget_nbytes")
    )


VERBS = (
    Verb(
        "study oracle",
        OracleOptions,
        "simshuffle.studies.oracle.request:request",
        examples=(
            "simshuffle study oracle paper/oracle",
            "simshuffle study oracle paper/oracle --strategies data,spatial",
            "simshuffle study oracle paper/oracle --budget-memory 8GiB --simulate data@64",
        ),
        kinds={"oracle": "simshuffle.studies.oracle.study"},
        function="oracle",
        noun="cell",
        done="computed",
        refused=_refused,
    ),
)
