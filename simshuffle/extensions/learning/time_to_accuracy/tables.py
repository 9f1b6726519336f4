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
    "Accuracy is that of the training; how learning behaves is not scaled. One trained epoch is one"
    " simulated epoch: the first epoch is cold, and every other epoch takes the mean time of warm"
    " epochs."
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


_SETTING = {"setting": text("name of the setting, as in settings.csv")}
CURVE_COLUMNS = {
    **_SETTING,
    "seed": count("seed of the training"),
    "epoch": count("epoch, from 1, after which accuracy was evaluated", 1),
    "time_s": amount_column("s from the start of the staging to the end of the epoch"),
    "accuracy": share_column(
        "share of test samples classified rightly after the epoch"
    ),
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
        "s of exchange in the steady epoch, exposed or hidden by other phases, mean over ranks"
    ),
    "exchange_exposed_s": amount_column(
        "s of exchange in the steady epoch in which a rank does nothing else, mean over ranks"
    ),
    "peer_nbytes": amount_column("bytes received from other ranks in the steady epoch"),
    "cold_requests": amount_column(
        "requests to the parallel file system or the object store in the first epoch"
    ),
    "requests": amount_column(
        "such requests in every other epoch, the mean of the warm ones"
    ),
    "staging_requests": amount_column(
        "such requests of the copying before the first epoch"
    ),
    "ssd_requests": amount_column(
        "requests to SSDs in a warm epoch, including those of senders"
    ),
    "cable_tier": text(
        "tier of the cable that is used most in the steady epoch, on average; empty if none is"
    ),
    "cable_utilisation": amount_column(
        "mean utilisation of that cable, share of its capacity"
    ),
}
"""What is simulated for a setting; means over the replays."""
SETTING_COLUMNS = {
    "setting": text("strategy and Q; of global shuffle, the source that it reads from"),
    "strategy": text("strategy, as in the training's runs.csv"),
    "exchange_fraction": share_column("Q; empty under global shuffle"),
    "world_size": count("ranks of the training, M", 1),
    "simulated_world_size": count("ranks that are simulated", 1),
    "seeds": count("trainings that ended as they should"),
    "failed_seeds": count(
        "trainings that failed; accuracy leaves them out, and targets.csv counts a target as not"
        " reached unless they had reached it before"
    ),
    "replays": count(
        "seeds whose plans were simulated; times are means over these simulations"
    ),
    "replay_spread_s": amount_column(
        "s between the shortest and the longest total_s of the replays; 0 for one replay"
    ),
    "epochs": count("epochs of the training"),
    **SIMULATED_COLUMNS,
    "total_s": amount_column("s of staging and all epochs"),
    "total_requests": amount_column(
        "requests to the parallel file system of staging and all epochs"
    ),
    "storage_nbytes": amount_column(
        "bytes of samples that a host keeps, at most: staged samples, or samples that its loaders"
        " fetch in all epochs"
    ),
    "accuracy": share_column(
        "share of test samples classified rightly after the last epoch, mean over seeds"
    ),
    **INTERVAL_COLUMNS,
    "label_divergence": share_column(
        "how far the labels of shards are from those of the whole set after the last epoch, mean"
        " over seeds"
    ),
    "between_ranks": amount_column(
        "variance of the ranks' mean training losses over that of all losses in the last epoch,"
        " mean over seeds"
    ),
    "on_front": flag(
        "whether no other setting is at least as good in storage, time, requests and accuracy, and"
        " better in one of them"
    ),
    "message": text("why the setting could not be simulated; empty if it was"),
}
"""Columns of settings.csv."""
TARGET_COLUMNS = {
    **_SETTING,
    "target": share("accuracy to reach, share of test samples"),
    "name": text("where the target comes from: 'global less 1 point', or 'as given'"),
    "n": count("number of seeds", 1),
    "reached": count("seeds with that accuracy or more after some epoch"),
    "probability": share("reached / n"),
    "probability_low": share(
        "lower end of the 95 % interval of probability, by Clopper and Pearson"
    ),
    "probability_high": share("upper end of that interval"),
    "time_s": amount_column(
        "s until the first evaluation that reached the target, mean over the seeds that did; empty"
        " if none did or nothing was simulated"
    ),
    "time_low_s": number_column(
        "lower end of the 95 % interval of time_s, by Student's t; empty for fewer than two seeds"
    ),
    "time_high_s": amount_column("upper end of that interval"),
    "epochs": amount_column("epochs until that evaluation, mean over the same seeds"),
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
