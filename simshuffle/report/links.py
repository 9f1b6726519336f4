"""Links of whole epochs, where a part of the iterations was simulated."""

from __future__ import annotations

import numpy as np
import pandas as pd

from simshuffle.report.report import keys_of


def links_of_whole_epochs(links: pd.DataFrame, epochs: pd.DataFrame) -> pd.DataFrame:
    """Return the links with bytes and mean utilisation of all iterations of an epoch.

    Of an epoch with I iterations, i of them simulated, a link carries I / i times its
    bytes. The simulated part lasted T s, and the epoch t s: so a link is in use for the
    share u T I / (i t) of the epoch, with u the share of the part, at most 1. T is the
    median of bytes / (capacity u) over the links of the part. Links of epochs without
    such a part, or that ``epochs`` lacks, stay as they are; ``links`` itself is
    returned if no epoch leaves any out.

    Args:
        links: columns run, epoch, capacity, nbytes, mean_utilisation, and seed where
            several are. Their bytes are of the simulated iterations.
        epochs: columns `EPOCH_COLUMNS`, and seed where ``links`` has it.
    """
    keys = [key for key in keys_of(epochs) if key in links]
    rows = epochs.astype({"run": str})
    rows = rows.assign(times=rows["iterations"] / rows["iterations_simulated"])
    window_of_epoch = rows.drop_duplicates(keys).set_index(keys)[["times", "epoch_s"]]
    if not (window_of_epoch["times"] > 1).any():
        return links

    epochs_of_links = pd.MultiIndex.from_frame(links[keys].astype({"run": str}))
    times, epoch_s = window_of_epoch.reindex(epochs_of_links).to_numpy(float).T
    nbytes, utilisation, capacity = (
        links[name].to_numpy(float)
        for name in ("nbytes", "mean_utilisation", "capacity")
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds_of_link = pd.Series(
            np.where(
                nbytes * utilisation > 0, nbytes / (capacity * utilisation), np.nan
            )
        )
    part_s = seconds_of_link.groupby(
        [links[key].astype(str).to_numpy() for key in keys]
    ).transform("median")
    epoch_utilisation = np.minimum(
        utilisation * part_s.to_numpy(float) * times / epoch_s, 1.0
    )
    is_part = (times > 1) & np.isfinite(epoch_utilisation)
    return links.assign(
        nbytes=np.where(times > 1, nbytes * times, nbytes),
        mean_utilisation=np.where(is_part, epoch_utilisation, utilisation),
    )
