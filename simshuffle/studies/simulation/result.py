"""The result of a simulation."""

from __future__ import annotations

from functools import cached_property

import pandas as pd

from simshuffle.results.export import html
from simshuffle.results.timeline import Timeline
from simshuffle.study.study import Result


class SimulationResult(Result):
    """What a run leaves behind: tables as in `simshuffle.studies.simulation.tables`. Of several
    seeds each has a column ``seed`` after the run.

    ``meta`` has versions, fingerprint, and for each run its hosts, storage per host, staging time
    and samples/s; of several seeds these two are means.
    """

    def _repr_html_(self) -> str:
        """What a notebook shows of it: all that a terminal shows."""
        return html(self.parts())

    @cached_property
    def timeline(self) -> Timeline:
        """Who did what when, what crossed every link, and where every epoch's bytes came from."""
        return Timeline(self.tables["timeline"], self.tables["links"], self.tables["sources"])

    @property
    def epochs(self) -> pd.DataFrame:
        """A row for every epoch of every run: columns `simshuffle.results.report.EPOCH_COLUMNS`."""
        return self.tables["epochs"]

    @property
    def breakdown(self) -> pd.DataFrame:
        """Seconds of every epoch by label and cause: see `simshuffle.results.report.breakdown`."""
        return self.tables["breakdown"]

    @property
    def scenario_yaml(self) -> str:
        """The resolved scenarios."""
        return self.documents["scenario.yaml"]
