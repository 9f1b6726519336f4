"""One run as a cell: a resolved scenario without sweep, simulated and reported."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.errors import InputError
from simshuffle.network import Flows, Fluid, Links
from simshuffle.plan.effort import Effort, effort
from simshuffle.plan.summary import extrapolated
from simshuffle.results import report
from simshuffle.results.timeline import Timeline
from simshuffle.scenario.inputs import by_content
from simshuffle.scenario.scenario import Scenario, from_dict
from simshuffle.sim.simulate import simulate
from simshuffle.study.cell import Outcome, PlainCell, Tell
from simshuffle.study.store import TABLE

TABLES = ("timeline", "links", "sources")
NAMELESS = ""
"""What the run is called in a cell's tables: its name is that of its place in a study."""

LARGE = 350e6
"""Bytes of a simulation after which it pays to look for memory to give back."""


class NetworkCell(PlainCell):
    """Computes with the compiled network."""

    @staticmethod
    def make_ready() -> None:
        """As for `Cell`: loads the compiled network, or compiles it where no cache holds it yet."""
        # THE ONE PLACE where that happens before processes are forked
        Fluid().finish_times(Links(np.ones(1), np.zeros(1)), Flows.of([[0]], [1.0]))


@dataclass(frozen=True)
class RunCell(NetworkCell):
    """A run.

    Attributes:
        document: the resolved scenario as plain values (see `Scenario.to_dict`), without sweep.
        label: of the run, for people.
        with_tables: whether its timeline is kept, beside what is reported of it.
    """

    document: Mapping[str, Any]
    label: str
    with_tables: bool = True

    @cached_property
    def scenario(self) -> Scenario:
        """The scenario.

        Raises:
            ScenarioError: it is not valid.
        """
        return from_dict(self.document, self.label)

    @property
    def key(self) -> Any:
        """As for `Cell`: all that decides the outcome; a name decides nothing, and of a file its
        contents alone."""
        plain = {k: v for k, v in self.document.items() if k not in {"name", "description"}}
        return by_content(plain)

    @cached_property
    def _effort(self) -> Effort:
        """No effort where the scenario is not valid: that is said at once. What is read here is not
        kept, for the cell is sent to another process."""
        try:
            return effort(from_dict(self.document, self.label))
        except InputError:
            return Effort(iterations=0.0, samples=0.0, stored=0.0, epochs=1, ranks=1)

    @property
    def cost(self) -> float:
        """As for `Cell`."""
        return self._effort.seconds

    @property
    def memory(self) -> float:
        """As for `Cell`."""
        return self._effort.own_nbytes

    @property
    def parts(self) -> frozenset[str]:
        """As for `Cell`."""
        return frozenset(f"{name}{TABLE}" for name in TABLES) if self.with_tables else frozenset()

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`: facts of the run, the rows of its epochs and of its breakdown; and its
        timeline, if that is kept."""
        scenario = self.scenario
        timeline = simulate(scenario, NAMELESS, tell)
        if self.memory > LARGE:
            _give_back()
        epochs = report.epochs(timeline)
        values = {
            "label": scenario.label(),
            "facts": facts(scenario),
            "epochs": _columns(epochs),
            "breakdown": _columns(report.all_labels(timeline)),
        }
        tables = (timeline.phases, timeline.links, timeline.sources)
        return Outcome(values, dict(zip(TABLES, tables, strict=True)) if self.with_tables else {})


def _give_back() -> None:
    """Give the system the memory that a simulation no longer uses, before tables are made of it:
    80 MB of 2048 ranks, which glibc would keep. Other C libraries do so by themselves."""
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def facts(scenario: Scenario) -> dict[str, Any]:
    """What ``meta.json`` says of a run before it is simulated."""
    beyond = extrapolated(scenario)
    return {
        **({"extrapolated": beyond} if beyond else {}),
        "seed": scenario.seed,
        "hosts": scenario.hosts,
        "iterations": scenario.workload.iterations(scenario.world_size),
        "storage_per_host_nbytes": scenario.storage_per_host,
        "staged_to": scenario.workload.source if scenario.storage_per_host else None,
    }


def named(timeline: Timeline, run: str, seed: int | None = None) -> Timeline:
    """A cell's tables with the name of the run; and with the seed after it, if one is given."""

    def rename(table: pd.DataFrame) -> pd.DataFrame:
        table = table.assign(run=table["run"].cat.rename_categories([run]))
        if seed is not None:
            table.insert(1, "seed", np.int64(seed))
        return table

    return Timeline(rename(timeline.phases), rename(timeline.links), rename(timeline.sources))


def _columns(table: pd.DataFrame) -> dict[str, list[Any]]:
    """The columns as plain values; the run has no name here."""
    return {
        str(name): table[name].tolist() for name in table.columns if name not in {"run", "strategy"}
    } | ({"strategy": table["strategy"].astype(str).tolist()} if "strategy" in table else {})
