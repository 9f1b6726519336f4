"""The tables of a time to accuracy: their columns and meanings."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from simshuffle.studies.training.tables import (
    INTERVAL_COLUMNS,
    number_column,
    share_column,
)
from simshuffle.study.schema import Column, Schema, amount, count, flag, share, text

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
"""Columns of `SIMULATED_COLUMNS` by the label that papers book their seconds under."""


def amount_column(meaning: str) -> Column:
    """Return a column of amounts, empty where nothing was simulated."""
    return amount(meaning, empty=True)


_SETTING = {"setting": text("as in settings.csv")}
CURVE_COLUMNS = {
    **_SETTING,
    "seed": count("of the training"),
    "epoch": count("from 1; those after which accuracy was evaluated", 1),
    "time_s": amount_column("s from the start of the staging to the end of the epoch"),
    "accuracy": share_column("share of test samples after it"),
}
"""Columns of curves.csv."""
SIMULATED_COLUMNS = {
    "cold_epoch_s": amount_column("s of the first epoch, which is cold"),
    "epoch_s": amount_column(
        "s of every other epoch, the mean of the warm ones; empty if the training had one epoch"
    ),
    "staging_s": amount_column(
        "s of the copying of samples to the hosts before the first epoch"
    ),
    **{
        column: amount_column(
            f"s under {label} in a warm epoch (or the only one), mean over epochs and ranks"
        )
        for label, column in LABELS.items()
    },
    "exchange_total_s": amount_column(
        "s of exchange in the steady epoch: what it shows and what other phases hide, mean over"
        " ranks"
    ),
    "exchange_exposed_s": amount_column(
        "s of exchange in it in which a rank does nothing else, mean over ranks"
    ),
    "peer_nbytes": amount_column("bytes received from other ranks in it"),
    "cold_requests": amount_column(
        "requests to the parallel file system or the object store in the first epoch"
    ),
    "requests": amount_column(
        "requests to them in every other epoch, the mean of the warm ones"
    ),
    "staging_requests": amount_column(
        "requests to them of the copying before the first epoch"
    ),
    "ssd_requests": amount_column(
        "requests to SSDs in a warm epoch, those of senders among them"
    ),
    "cable_tier": text(
        "tier of the cable that is used most in it, on average; empty if none is"
    ),
    "cable_utilisation": amount_column("its mean utilisation, share of its capacity"),
}
"""What is simulated for a setting; means over the replays."""
SETTING_COLUMNS = {
    "setting": text("strategy and Q; of global shuffle, the source that it reads from"),
    "strategy": text("as in the training's runs.csv"),
    "exchange_fraction": share_column("Q; empty under global shuffle"),
    "world_size": count("M of the training, ranks", 1),
    "simulated_world_size": count("ranks that are simulated", 1),
    "seeds": count("trainings that ended as they should"),
    "failed_seeds": count(
        "trainings that failed; not in accuracy, and in targets.csv as not reached unless they had"
        " reached it before"
    ),
    "replays": count(
        "simulations with the plans of as many seeds; the times are their means"
    ),
    "replay_spread_s": amount_column(
        "s from the shortest to the longest of all epochs among the replays; 0 for one"
    ),
    "epochs": count("of the training"),
    **SIMULATED_COLUMNS,
    "total_s": amount_column("s of staging and all epochs"),
    "total_requests": amount_column(
        "requests to the parallel file system of staging and all epochs"
    ),
    "storage_nbytes": amount_column(
        "bytes of samples that a host keeps, at most: of what is staged, or of what its loaders"
        " fetch in all epochs"
    ),
    "accuracy": share_column(
        "after the last epoch, mean over seeds, share of test samples"
    ),
    **INTERVAL_COLUMNS,
    "label_divergence": share_column(
        "after the last epoch, mean over seeds: how far the labels of shards are from those of the"
        " whole set"
    ),
    "between_ranks": amount_column(
        "in the last epoch, mean over seeds: variance of the ranks' mean training losses over that"
        " of all losses"
    ),
    "on_front": flag(
        "no other setting is at least as good in storage, time, requests and accuracy, and better"
        " in one of them"
    ),
    "message": text("why it could not be simulated; empty if it was"),
}
"""Columns of settings.csv."""
TARGET_COLUMNS = {
    **_SETTING,
    "target": share("accuracy, share of test samples"),
    "name": text("where the target comes from: 'global less 1 point', or 'as given'"),
    "n": count("seeds", 1),
    "reached": count("of them, seeds with that accuracy or more after some epoch"),
    "probability": share("reached / n"),
    "probability_low": share("lower end of its 95 % interval by Clopper and Pearson"),
    "probability_high": share("upper end"),
    "time_s": amount_column(
        "s until the first evaluation that reached it, mean over the seeds that did; empty if none"
        " did or nothing was simulated"
    ),
    "time_low_s": number_column(
        "lower end of its 95 % interval by Student's t; empty for fewer than two"
    ),
    "time_high_s": amount_column("upper end"),
    "epochs": amount_column("epochs until then, mean over the same seeds"),
}
"""Columns of targets.csv."""
STORED = {
    "curves": Schema(CURVE_COLUMNS, key=("setting", "seed", "epoch")),
    "settings": Schema(SETTING_COLUMNS, key=("setting",)),
    "targets": Schema(TARGET_COLUMNS, key=("setting", "target")),
}


@dataclass(frozen=True)
class JoinTables:
    """The three tables of accuracy joined with time."""

    # curves, settings, targets: columns as in `STORED`
    curves: pd.DataFrame
    settings: pd.DataFrame
    targets: pd.DataFrame
