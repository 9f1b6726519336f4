"""Accuracy curves of earlier trainings, and the epochs that each strategy needs to a
target accuracy.
"""

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

TARGET_MARGIN = 0.01
"""Absolute accuracy by which the default target is below the best of global shuffle.

From 0.75 it leads to 0.74. The first default target of ``simshuffle study tta`` has the
same margin.
"""
Setting = tuple[str, float | None]
"""Short name of a strategy, and Q: None under global shuffle, 0 under local shuffle."""
COLUMNS = "strategy (or setting), exchange_fraction, epoch and accuracy"
"""Columns of a CSV file of curves, in the words of errors."""


@dataclass(frozen=True)
class AccuracyCurve:
    """Accuracy of one setting after each evaluated epoch."""

    # share of test samples, 0 to 1, mean over seeds, by epoch from 1; never empty
    accuracy: Mapping[int, float]

    @property
    def best(self) -> float:
        """Return the highest accuracy, a share from 0 to 1."""
        return max(self.accuracy.values())

    def epochs_to(self, target: float) -> int | None:
        """Return the first evaluated epoch with an accuracy of at least ``target``;
        None if there is none.
        """
        return next(
            (
                epoch
                for epoch in sorted(self.accuracy)
                if self.accuracy[epoch] >= target
            ),
            None,
        )


def read_curves(path: Path) -> dict[Setting, AccuracyCurve]:
    """Read the accuracy curves, averaged over seeds, of a CSV file or a result folder.

    All rows of one strategy, Q and epoch are averaged: those of global shuffle from
    several sources, too.

    Args:
        path: a CSV file with columns strategy (or setting), exchange_fraction (Q, may
            lack), epoch (from 1) and accuracy (share, 0 to 1), or a result folder of
            times to accuracy, or of a training study, of which the default condition is
            read (see `read_study`).

    Raises:
        InputError: the path does not exist or cannot be read, there are no curves, or a
            row is not valid.
    """
    if path.is_dir():
        rows = _read_folder(path)
    elif path.is_file():
        rows = _read_csv(path)
    else:
        remedy = "Give a CSV file, or a result folder of simshuffle train or tta."
        refuse(
            "--target-accuracy",
            "no such file or folder",
            str(path),
            remedy,
            "command line",
        )
    accuracies: dict[Setting, dict[int, list[float]]] = {}
    for setting, epoch, accuracy in rows:
        accuracies.setdefault(setting, {}).setdefault(epoch, []).append(accuracy)
    if not accuracies:
        refuse("", f"must have rows of {COLUMNS}", "none", "Add such rows.", str(path))
    return {
        setting: AccuracyCurve(
            {epoch: sum(values) / len(values) for epoch, values in by_epoch.items()}
        )
        for setting, by_epoch in accuracies.items()
    }


def default_target(
    curves_by_setting: Mapping[Setting, AccuracyCurve], source: str
) -> float:
    """Return the best accuracy of global shuffle minus `TARGET_MARGIN`, a share.

    The margin is absolute: a best of 0.75 gives 0.74.

    Args:
        curves_by_setting: the curves; that of global shuffle is at ("global", None).
        source: the file or folder of the curves, for errors.

    Raises:
        InputError: there is no curve of global shuffle.
    """
    global_curve = curves_by_setting.get(("global", None))
    if global_curve is None:
        rule = "must be given, since the curves have no global shuffle"
        refuse("--target", rule, "none", "For example --target 0.75.", source)
    return global_curve.best - TARGET_MARGIN


def _read_folder(folder: Path) -> Iterable[tuple[Setting, int, float]]:
    """Yield setting, epoch and accuracy of each row of a result folder: of times to
    accuracy, or of the default condition (see `read_study`) of a training study.

    Q is the number in the setting's name. Errors come when rows are asked for.

    Raises:
        InputError: the folder has no such condition, or no finished run.
    """
    if meta_of(folder).get("kind") == TTA.kind:
        table = engine.read(TTA, folder).tables["curves"]
    else:
        table = read_study(folder, TtaOptions(study=folder, scenario="")).curves
    for row in table.to_dict("records"):
        yield (
            parse_setting_name(str(row["setting"]), None),
            int(row["epoch"]),
            float(row["accuracy"]),
        )


def _read_csv(path: Path) -> Iterable[tuple[Setting, int, float]]:
    """Yield setting, epoch and accuracy of each row of a CSV file.

    The name is that of column strategy, or of setting where strategy lacks or is empty.
    Q may lack. Errors come when rows are asked for.

    Raises:
        InputError: the file cannot be read; or a row has no name, an epoch that is no
            whole number from 1, an accuracy outside 0 to 1, or a Q that is no number.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = str(error).partition("\n")[0]
        refuse("", "cannot be read", reason, "Give a CSV file.", str(path))
    for line, row in enumerate(rows, 2):
        try:
            name = row.get("strategy") or row["setting"]
            epoch = int(row["epoch"])
            accuracy = float(row["accuracy"])
            fraction = (
                float(row["exchange_fraction"])
                if row.get("exchange_fraction")
                else None
            )
            if not (name and epoch >= 1 and 0 <= accuracy <= 1):
                raise ValueError(name)
        except (KeyError, TypeError, ValueError):
            row_words = ", ".join(f"{key}={value}" for key, value in row.items())
            remedy = "Epochs count from 1; accuracy is a share from 0 to 1."
            refuse(f"line {line}", f"must have {COLUMNS}", row_words, remedy, str(path))
        yield parse_setting_name(name, fraction), epoch, accuracy


# strategy, and Q behind a blank or hyphen where there is one
_SETTING = re.compile(r"^(.*?)(?:[ -](\d+(?:\.\d*)?))?$")


def parse_setting_name(name: str, fraction: float | None) -> Setting:
    """Return the strategy and Q of a name such as 'partial', 'partial-0.1',
    'IS-Pair 0.1' or 'global (PFS)'.

    Q is ``fraction`` if given, else the number in the name; None if there is neither or
    ``fraction`` is NaN. Global shuffle always has None, local shuffle 0. The strategy
    is what stands before the number, without '_shuffle'. All from the first '(' on is
    ignored, a number behind it, too. The strategy need not be one that is known.
    """
    match = _SETTING.match(name.partition("(")[0].strip())
    strategy, fraction_text = (match[1], match[2]) if match else (name, None)
    strategy = strategy.removesuffix("_shuffle")
    if fraction is None and fraction_text:
        fraction = float(fraction_text)
    if strategy == "global":
        return strategy, None
    if strategy == "local":
        return strategy, 0.0
    return strategy, None if fraction is None or math.isnan(fraction) else fraction


def summarise_curves(
    curves_by_setting: Mapping[Setting, AccuracyCurve], target: float
) -> list[dict[str, Any]]:
    """Return the facts that a plan stores of curves, one dictionary for each setting.

    Returns:
        Keys: strategy; exchange_fraction (Q or None); epochs to ``target`` (None if not
        reached); best, the highest accuracy, a share.
    """
    return [
        {
            "strategy": strategy,
            "exchange_fraction": fraction,
            "epochs": curve.epochs_to(target),
            "best": curve.best,
        }
        for (strategy, fraction), curve in curves_by_setting.items()
    ]
