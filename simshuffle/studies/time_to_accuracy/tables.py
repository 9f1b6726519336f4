"""The tables of a time to accuracy: their columns, and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pandas as pd

from simshuffle.study.schema import Column, Schema, amount, count, flag, real, share, text

NOT_SCALED = (
    "Accuracy is that of the training as it was; how learning behaves is not scaled. One trained"
    " epoch is one simulated epoch: the first is cold, and every other one takes the mean of the"
    " warm ones."
)
"""What is said beside every result."""
LABELS = {
    "I/O": "io_s",
    "FW+BW": "fw_bw_s",
    "IMPT": "impt_s",
    "GE+WU": "ge_wu_s",
    "EXCHANGE": "exchange_s",
}
"""The column of each of the papers' labels."""

CURVE_COLUMNS = {
    "setting": "as in settings.csv",
    "seed": "of the training",
    "epoch": "from 1; those after which accuracy was evaluated",
    "time_s": "s from the start of the staging to the end of the epoch",
    "accuracy": "share of test samples after it",
}
"""Columns of curves.csv and their meaning."""

SIMULATED_COLUMNS = {
    "cold_epoch_s": "s of the first epoch, which is cold",
    "epoch_s": (
        "s of every other epoch, the mean of the warm ones; empty if the training had one epoch"
    ),
    "staging_s": "s of the copying of samples to the hosts before the first epoch",
    **{
        column: f"s under {label} in a warm epoch (or the only one), mean over epochs and ranks"
        for label, column in LABELS.items()
    },
    "exchange_total_s": (
        "s of exchange in the steady epoch: what it shows and what other phases hide, mean over"
        " ranks"
    ),
    "exchange_exposed_s": "s of exchange in it in which a rank does nothing else, mean over ranks",
    "peer_nbytes": "bytes received from other ranks in it",
    "cold_requests": "requests to the parallel file system or the object store in the first epoch",
    "requests": "requests to them in every other epoch, the mean of the warm ones",
    "staging_requests": "requests to them of the copying before the first epoch",
    "ssd_requests": "requests to SSDs in a warm epoch, those of senders among them",
    "cable_tier": "tier of the cable that is used most in it, on average; empty if none is",
    "cable_utilisation": "its mean utilisation, share of its capacity",
}
"""What is simulated for a setting; means over the replays."""

SETTING_COLUMNS = {
    "setting": "strategy and Q; of global shuffle, the source that it reads from",
    "strategy": "as in the training's runs.csv",
    "exchange_fraction": "Q; empty under global shuffle",
    "world_size": "M of the training, ranks",
    "simulated_world_size": "ranks that are simulated",
    "seeds": "trainings that ended as they should",
    "failed_seeds": (
        "trainings that failed; not in accuracy, and in targets.csv as not reached unless they had"
        " reached it before"
    ),
    "replays": "simulations with the plans of as many seeds; the times are their means",
    "replay_spread_s": (
        "s from the shortest to the longest of all epochs among the replays; 0 for one"
    ),
    "epochs": "of the training",
    **SIMULATED_COLUMNS,
    "total_s": "s of staging and all epochs",
    "total_requests": "requests to the parallel file system of staging and all epochs",
    "storage_nbytes": (
        "bytes of samples that a host keeps, at most: of what is staged, or of what its loaders"
        " fetch in all epochs"
    ),
    "accuracy": "after the last epoch, mean over seeds, share of test samples",
    "low": "lower end of its 95 % interval by Student's t; empty for one seed",
    "high": "upper end",
    "label_divergence": (
        "after the last epoch, mean over seeds: how far the labels of shards are from those of the"
        " whole set"
    ),
    "between_ranks": (
        "in the last epoch, mean over seeds: variance of the ranks' mean training losses over that"
        " of all losses"
    ),
    "on_front": (
        "no other setting is at least as good in storage, time, requests and accuracy, and better"
        " in one of them"
    ),
    "message": "why it could not be simulated; empty if it was",
}
"""Columns of settings.csv and their meaning."""

TARGET_COLUMNS = {
    "setting": "as in settings.csv",
    "target": "accuracy, share of test samples",
    "name": "where the target comes from: 'global less 1 point', or 'as given'",
    "n": "seeds",
    "reached": "of them, seeds with that accuracy or more after some epoch",
    "probability": "reached / n",
    "probability_low": "lower end of its 95 % interval by Clopper and Pearson",
    "probability_high": "upper end",
    "time_s": (
        "s until the first evaluation that reached it, mean over the seeds that did; empty if none"
        " did or nothing was simulated"
    ),
    "time_low_s": "lower end of its 95 % interval by Student's t; empty for fewer than two",
    "time_high_s": "upper end",
    "epochs": "epochs until then, mean over the same seeds",
}
"""Columns of targets.csv and their meaning."""

_KINDS: dict[str, Callable[[str], Column]] = {
    **dict.fromkeys(("setting", "strategy", "cable_tier", "message", "name"), text),
    **dict.fromkeys(("seed", "seeds", "failed_seeds", "replays", "reached"), count),
    **dict.fromkeys(("epoch", "n", "world_size", "simulated_world_size"), lambda m: count(m, 1)),
    **dict.fromkeys(("target", "probability", "probability_low", "probability_high"), share),
    **dict.fromkeys(
        ("exchange_fraction", "accuracy", "label_divergence"), lambda m: share(m, empty=True)
    ),
    # by Student's t, which knows no bounds
    **dict.fromkeys(("low", "high", "time_low_s"), lambda m: real(m, empty=True)),
    "on_front": flag,
}


def _schema(columns: Mapping[str, str], *key: str, **own: Callable[[str], Column]) -> Schema:
    """The schema of a table with these columns, of which it has ``own`` kinds; what is not known by
    its name is an amount that may be missing."""
    known = _KINDS | own
    kinds = {name: known.get(name, _amount)(meaning) for name, meaning in columns.items()}
    return Schema(kinds, key=key)


def _amount(meaning: str) -> Column:
    return amount(meaning, empty=True)


STORED = {
    "curves": _schema(CURVE_COLUMNS, "setting", "seed", "epoch"),
    "settings": _schema(SETTING_COLUMNS, "setting", epochs=count),
    "targets": _schema(TARGET_COLUMNS, "setting", "target"),
}


@dataclass(frozen=True)
class Tables:
    """What was found.

    Attributes:
        curves, settings, targets: columns `COLUMNS`.
    """

    curves: pd.DataFrame
    settings: pd.DataFrame
    targets: pd.DataFrame
