"""A calibration as a cell: the files are parsed, and every law is fitted to what it tells of."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from simshuffle.errors import InputError, Problem
from simshuffle.spec.library import nearest
from simshuffle.studies.calibrate import collectives, messages, storage, training
from simshuffle.studies.calibrate.files import Source
from simshuffle.studies.calibrate.findings import Findings
from simshuffle.studies.calibrate.networks import networks
from simshuffle.studies.calibrate.parameter import parameters_table
from simshuffle.studies.calibrate.readers import READERS, rows_of
from simshuffle.studies.calibrate.rows import as_table
from simshuffle.studies.calibrate.tables import RESIDUALS, STORED
from simshuffle.study.cell import Outcome, PlainCell, Tell


@dataclass(frozen=True)
class Settings:
    """How files are read and fitted.

    Attributes:
        kind: their kind, where it is not recognised; see
            `simshuffle.studies.calibrate.readers.READERS`.
        fit_up_to: the most ranks to fit; rows with more are predicted, and are in the residuals.
        epochs: of epoch logs, 'steady' (from the second on) or 'all'.
        models: of epoch logs, the entry of the catalog for each model's name in the log; or names
            of entries, see `networks`.
        accelerator: key of the step times; None where the catalog's entry has one only.
        gpus_per_host: of epoch logs that do not say on how many hosts a run was.
        ranks, hosts: of OSU collectives, and of nccl-tests whose list of devices was lost.
        store: what IOR and mdtest measured: 'pfs' or 'ssd'.
    """

    kind: str | None = None
    fit_up_to: int | None = None
    epochs: str = "steady"
    models: Mapping[str, str] | Sequence[str] = ()
    accelerator: str | None = None
    gpus_per_host: int = 4
    ranks: int | None = None
    hosts: int | None = None
    store: str = "pfs"

    def check(self) -> None:
        """See that the values are known and fit together.

        Raises:
            InputError: with all that do not.
        """
        problems = [
            Problem(name, "is not known", repr(value), nearest(value, list(known)))
            for name, value, known in (
                ("--as", self.kind, READERS),
                ("--epochs", self.epochs, ("steady", "all")),
                ("--storage", self.store, storage.STORAGES),
            )
            if value is not None and value not in known
        ]
        if self.hosts is not None and self.ranks is not None and self.hosts > self.ranks:
            rule = f"must not exceed the {self.ranks} ranks"
            problems.append(Problem("--hosts", rule, str(self.hosts), "Correct one of them."))
        if problems:
            raise InputError(problems, "command line")


@dataclass(frozen=True)
class CalibrationCell(PlainCell):
    """Files and how they are read and fitted."""

    sources: tuple[Source, ...]
    settings: Settings

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of the text of each file by its name."""
        return {of.name: hashlib.sha256(of.text.encode()).hexdigest() for of in self.sources}

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        return [list(self.digests.items()), asdict(self.settings)]

    @property
    def label(self) -> str:
        """As for `Cell`."""
        return ", ".join(source.name for source in self.sources)

    @property
    def parts(self) -> frozenset[str]:
        """As for `Cell`."""
        return frozenset(f"{name}.parquet" for name in STORED)

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`: the tables `STORED`, and notes on what was left out or assumed.

        Raises:
            InputError: a file is wrong, or there is nothing to fit.
        """
        rows = [row for source in self.sources for row in rows_of(source, self.settings.kind)]
        measurements = as_table(rows)
        found = fitted(measurements, self.settings)
        _check(found, len(rows))
        residuals = [of for of in found.residuals if len(of)] or [RESIDUALS.empty()]
        tables = {
            "parameters": parameters_table(found.parameters),
            "measurements": measurements,
            "residuals": pd.concat(residuals, ignore_index=True),
        }
        return Outcome({"notes": found.notes}, tables)


def fitted(table: pd.DataFrame, settings: Settings) -> Findings:
    """What the laws find in the measurements ``table``.

    Raises:
        InputError: a law cannot take its rows.
    """
    limit = settings.fit_up_to
    used = pd.Series(True, index=table.index) if limit is None else table["ranks"] <= limit
    out = Findings()

    def of(*operations: str) -> tuple[pd.DataFrame, pd.Series]:
        rows = table[table["operation"].isin(operations)]
        return rows, used[rows.index]

    out.add(collectives.allreduce(*of("all_reduce")))
    out.add(collectives.all_to_all(*of("all_to_all")))
    out.add(messages.point_to_point(of("latency")[0], of("bandwidth")[0]))
    out.add(storage.transfers(*of("read", "write"), settings.store))
    out.add(storage.opens(*of("file_read", "file_stat"), settings.store))
    rows, _ = of("iteration")
    if len(rows):
        logged = sorted(set(rows["model"]))
        known = networks(logged, settings.models, settings.accelerator)
        rows = rows[rows["model"].isin(list(known))]
        how = settings.gpus_per_host, settings.epochs
        out.add(training.training(rows, used[rows.index], known, *how))
    return out


def _check(found: Findings, count: int) -> None:
    """See that something was fitted, and nothing twice."""
    keys = [p.key for p in found.parameters if p.usable and not p.model]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    rule, value = "several files measured the same parameter", ", ".join(twice)
    remedy = "Calibrate them one by one, and include the fragments in the order of your trust."
    if not found.parameters:
        rule, value = "; ".join(["nothing could be fitted", *found.notes]), f"{count} rows"
        remedy = "Give more files, or a larger --fit-up-to."
    if twice or not found.parameters:
        raise InputError(Problem("", rule, value, remedy), "calibrate")
