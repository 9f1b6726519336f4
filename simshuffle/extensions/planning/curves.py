"""How many epochs each strategy needs to a target accuracy, from what was learned."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simshuffle.errors import refuse
from simshuffle.extensions.learning.time_to_accuracy.learned import read_study
from simshuffle.extensions.learning.time_to_accuracy.study import STUDY as TTA
from simshuffle.extensions.learning.time_to_accuracy.verb import TtaOptions
from simshuffle.report.folders import meta_of
from simshuffle.study import engine

POINT = 0.01
"""Below the best of global shuffle, as the first default target of ``simshuffle study tta``."""
Setting = tuple[str, float | None]
"""Short name of a strategy, and Q: None under global shuffle, 0 under local shuffle."""
COLUMNS = "strategy (or setting), exchange_fraction, epoch and accuracy"


@dataclass(frozen=True)
class AccuracyCurve:
    """One setting."""

    accuracy: Mapping[int, float]  # share of test samples, mean over seeds, by epoch

    @property
    def best(self) -> float:
        """The highest."""
        return max(self.accuracy.values())

    def epochs_to(self, target: float) -> int | None:
        """The first epoch with that accuracy or more; None if there is none."""
        return next((n for n in sorted(self.accuracy) if self.accuracy[n] >= target), None)


def curves(path: Path) -> dict[Setting, AccuracyCurve]:
    """The curves of a CSV file, or of a result folder of trainings or of times to accuracy. Raises
    an InputError if there are none, or a row is none."""
    if path.is_dir():
        rows = _of_folder(path)
    elif path.is_file():
        rows = _of_file(path)
    else:
        remedy = "Give a CSV file, or a result folder of simshuffle train or tta."
        refuse("--target-accuracy", "no such file or folder", str(path), remedy, "command line")
    found: dict[Setting, dict[int, list[float]]] = {}
    for setting, epoch, accuracy in rows:
        found.setdefault(setting, {}).setdefault(epoch, []).append(accuracy)
    if not found:
        refuse("", f"must have rows of {COLUMNS}", "none", "Add some.", str(path))
    return {
        setting: AccuracyCurve({epoch: sum(of) / len(of) for epoch, of in by_epoch.items()})
        for setting, by_epoch in found.items()
    }


def default_target(known: Mapping[Setting, AccuracyCurve], source: str) -> float:
    """The best accuracy of global shuffle less one point; an InputError without global shuffle."""
    whole = known.get(("global", None))
    if whole is None:
        rule = "must be given where the curves have no global shuffle"
        refuse("--target", rule, "none", "For example --target 0.75.", source)
    return whole.best - POINT


def _of_folder(folder: Path) -> Iterable[tuple[Setting, int, float]]:
    if meta_of(folder).get("kind") == TTA.kind:
        table = engine.read(TTA, folder).tables["curves"]
    else:
        table = read_study(folder, TtaOptions(study=folder, scenario="")).curves
    for row in table.to_dict("records"):
        yield setting_of(str(row["setting"]), None), int(row["epoch"]), float(row["accuracy"])


def _of_file(path: Path) -> Iterable[tuple[Setting, int, float]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = str(error).partition("\n")[0]
        refuse("", "cannot be read", why, "Give a CSV file.", str(path))
    for number, row in enumerate(rows, 2):
        try:
            name = row.get("strategy") or row["setting"]
            epoch, accuracy = int(row["epoch"]), float(row["accuracy"])
            fraction = float(row["exchange_fraction"]) if row.get("exchange_fraction") else None
            if not (name and epoch >= 1 and 0 <= accuracy <= 1):
                raise ValueError(name)
        except (KeyError, TypeError, ValueError):
            given = ", ".join(f"{key}={value}" for key, value in row.items())
            remedy = "Epochs count from 1; accuracy is a share from 0 to 1."
            refuse(f"line {number}", f"must have {COLUMNS}", given, remedy, str(path))
        yield setting_of(name, fraction), epoch, accuracy


_SETTING = re.compile(r"^(.*?)(?:[ -](\d[\d.]*))?$")


def setting_of(name: str, fraction: float | None) -> Setting:
    """The setting of a name such as 'partial', 'partial-0.1', 'IS-Pair 0.1' or 'global (PFS)'."""
    found = _SETTING.match(name.partition("(")[0].strip())
    strategy, written = (found[1], found[2]) if found else (name, None)
    strategy = strategy.removesuffix("_shuffle")
    if fraction is None and written:
        fraction = float(written)
    if strategy == "global":
        return strategy, None
    if strategy == "local":
        return strategy, 0.0
    return strategy, None if fraction is None or math.isnan(fraction) else fraction


def plain(known: Mapping[Setting, AccuracyCurve], target: float) -> list[dict[str, Any]]:
    """What is kept of curves: for every setting the epochs to ``target``, and its best."""
    return [
        {
            "strategy": strategy,
            "exchange_fraction": fraction,
            "epochs": curve.epochs_to(target),
            "best": curve.best,
        }
        for (strategy, fraction), curve in known.items()
    ]
