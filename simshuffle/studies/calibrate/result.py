"""A calibration: files are read, laws are fitted, and the result is kept in a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from simshuffle.errors import InputError, Problem
from simshuffle.results import code as results
from simshuffle.results import style as plots
from simshuffle.results.folders import write_folder
from simshuffle.studies.calibrate import collectives, messages, storage, training
from simshuffle.studies.calibrate.figures import residuals_figure
from simshuffle.studies.calibrate.fragment import as_yaml, record
from simshuffle.studies.calibrate.networks import networks
from simshuffle.studies.calibrate.parameter import RESIDUAL_COLUMNS, Findings, Parameter
from simshuffle.studies.calibrate.readers import read_files

KIND = "calibration"
FRAGMENT = "calibration.yaml"
FILES = (
    "meta.json",
    FRAGMENT,
    "measurements.csv",
    "residuals.csv",
    "residuals.png",
    "residuals.pdf",
)


@dataclass(frozen=True)
class Calibration:
    """What was read and fitted.

    Attributes:
        parameters: what was fitted, with intervals.
        measurements: what was read; columns `simshuffle.studies.calibrate.table.COLUMNS`.
        residuals: measured and fitted values; columns
            `simshuffle.studies.calibrate.parameter.RESIDUAL_COLUMNS`.
        notes: what was left out or assumed, for people.
    """

    parameters: list[Parameter]
    measurements: pd.DataFrame
    residuals: pd.DataFrame
    notes: list[str] = field(default_factory=list)

    def to_yaml(self) -> str:
        """The fragment for a scenario. Of several models, the step times are left out; see
        `fragments`."""
        return self.fragments()[FRAGMENT]

    def fragments(self) -> dict[str, str]:
        """All fragments by file name: one, and where several models were measured, one more with
        the step times of each."""
        models = sorted({p.model for p in self.parameters if p.usable and p.model})
        if len(models) < 2:
            return {FRAGMENT: as_yaml(self.parameters)}
        out = {FRAGMENT: as_yaml([p for p in self.parameters if not (p.usable and p.model)])}
        for model in models:
            out[f"calibration-{model}.yaml"] = as_yaml(
                [p for p in self.parameters if p.usable and p.model == model]
            )
        return out

    @property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that stand for what was read, fitted and by which code."""
        return results.fingerprint(
            self.measurements.to_csv()
            + self.residuals.to_csv()
            + "".join(self.fragments().values())
        )

    def save(self, folder: str | Path, *, replace: bool = False) -> Path:
        """Write the folder; nothing is left half-written, whatever happens. Returns the folder.

        Raises:
            InputError: the folder holds something, and it is no result or ``replace`` is False.
        """
        return write_folder(Path(folder), self._fill, replace=replace)

    def _fill(self, folder: Path) -> None:
        meta = {
            "kind": KIND,
            "fingerprint": self.fingerprint,
            "versions": results.versions(),
            "notes": self.notes,
        }
        (folder / "meta.json").write_text(
            json.dumps(meta, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        for name, text in self.fragments().items():
            (folder / name).write_text(text, encoding="utf-8")
        self.measurements.to_csv(folder / "measurements.csv", index=False)
        self.residuals.to_csv(folder / "residuals.csv", index=False)
        plots.save(residuals_figure(self.residuals), folder / "residuals")

    def to_json(self) -> str:
        """Parameters and notes as JSON; values as text with units."""
        rows = [
            {**record(p).model_dump(mode="json"), "rows": p.rows, "in_scenario": p.usable}
            for p in self.parameters
        ]
        return json.dumps(
            {"parameters": rows, "notes": self.notes}, indent=1, allow_nan=False, ensure_ascii=False
        )


def holds(folder: Path, fingerprint: str) -> bool:
    """Whether ``folder`` holds the calibration of that fingerprint, complete."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    same = (
        isinstance(meta, dict)
        and meta.get("kind") == KIND
        and meta.get("fingerprint") == fingerprint
    )
    return same and all((folder / name).is_file() for name in FILES)


def calibrate(
    paths: str | Path | Sequence[str | Path],
    *,
    kind: str | None = None,
    fit_up_to: int | None = None,
    epochs: str = "steady",
    models: Mapping[str, str] | Sequence[str] = (),
    accelerator: str | None = None,
    gpus_per_host: int = 4,
    ranks: int | None = None,
    hosts: int | None = None,
    store: str = "pfs",
) -> Calibration:
    """Read measurement files and fit the parameters that they tell of.

    Args:
        paths: one file or several: nccl-tests, OSU micro-benchmarks, IOR, mdtest, epoch logs.
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

    Raises:
        InputError: a file or an argument is wrong, or there is nothing to fit.
    """
    _check(epochs, store, ranks, hosts)
    files = [paths] if isinstance(paths, str | Path) else list(paths)
    table = read_files(files, kind, ranks, hosts)
    used = pd.Series(True, index=table.index) if fit_up_to is None else table["ranks"] <= fit_up_to
    out = Findings()
    for law, operations in (
        (collectives.allreduce, ["all_reduce"]),
        (collectives.all_to_all, ["all_to_all"]),
    ):
        rows = table[table["operation"].isin(operations)]
        out.add(law(rows, used[rows.index]))
    out.add(
        messages.point_to_point(
            table[table["operation"] == "latency"], table[table["operation"] == "bandwidth"]
        )
    )
    for fit, operations in (
        (storage.transfers, ["read", "write"]),
        (storage.opens, ["file_read", "file_stat"]),
    ):
        rows = table[table["operation"].isin(operations)]
        out.add(fit(rows, used[rows.index], store))
    rows = table[table["operation"] == "iteration"]
    if len(rows):
        known = networks(sorted(set(rows["model"])), models, accelerator)
        rows = rows[rows["model"].isin(list(known))]
        out.add(training.training(rows, used[rows.index], known, gpus_per_host, epochs))
    return _finished(out, table)


def _finished(out: Findings, table: pd.DataFrame) -> Calibration:
    if not out.parameters:
        rule = "; ".join(["nothing could be fitted", *out.notes])
        raise InputError(
            Problem("", rule, f"{len(table)} rows", "Give more files, or a larger --fit-up-to."),
            "calibrate",
        )
    keys = [p.key for p in out.parameters if p.usable and not p.model]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        remedy = "Calibrate them one by one, and include the fragments in the order of your trust."
        raise InputError(
            Problem("", "several files measured the same parameter", ", ".join(twice), remedy),
            "calibrate",
        )
    residuals = (
        pd.concat(out.residuals, ignore_index=True)
        if out.residuals
        else pd.DataFrame(columns=list(RESIDUAL_COLUMNS))
    )
    return Calibration(out.parameters, table, residuals, out.notes)


def _check(epochs: str, store: str, ranks: int | None, hosts: int | None) -> None:
    problems: list[Problem] = []
    for name, value, known in (
        ("--epochs", epochs, ("steady", "all")),
        ("--storage", store, storage.STORAGES),
    ):
        if value not in known:
            problems.append(
                Problem(name, f"must be {' or '.join(known)}", repr(value), "Name one of them.")
            )
    if hosts is not None and ranks is not None and hosts > ranks:
        problems.append(
            Problem(
                "--hosts", f"must not exceed the {ranks} ranks", str(hosts), "Correct one of them."
            )
        )
    if problems:
        raise InputError(problems, "command line")
