"""What single values do alone, from the tables of an ablation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from simshuffle.studies.ablation.tables import CHANGE_COLUMNS


def changes(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Every value that was simulated alone, against the base it was set in: columns
    `CHANGE_COLUMNS`."""
    count = len(tables["switches"])
    base_of = {"start": "0" * count, "end": "1" * count}
    runs = tables["runs"].set_index(["state", "label", "seed"])["seconds"]
    rows = []
    keys = ["key", "value", "base", "label"]
    for _, of in tables["alone"].groupby(keys, sort=False):
        key, value, base, label = (str(of[name].iloc[0]) for name in keys)
        before = np.array([runs.loc[(base_of[base], label, seed)] for seed in of["seed"].tolist()])
        change = of["seconds"].to_numpy() - before
        rows.append(
            (
                key,
                value,
                base,
                label,
                float(change.mean()),
                float(change.min()),
                float(change.max()),
            )
        )
    return pd.DataFrame(rows, columns=list(CHANGE_COLUMNS))
