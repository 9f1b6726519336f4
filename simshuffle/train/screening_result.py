"""The result of a screening: what each setting loses, the law that losses follow, and a
verdict.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isnan
from pathlib import Path

import pandas as pd

from simshuffle.spec.whole_file import whole_file
from simshuffle.study.verdict import Verdict, join_sentences
from simshuffle.workload.exchange import GlobalShuffle

SHIFTED = 0.1
"""The least label divergence, beyond that of global shuffle, at which the verdict says
that ranks have other labels than the set.
"""


GLOBAL = GlobalShuffle(kind="global_shuffle")


@dataclass(frozen=True)
class Screening:
    """The result of `screen`: accuracy lost by each strategy, and the law that it
    follows.
    """

    model: str  # class of the network
    data: str  # class of the training samples
    momentum: float  # of the running statistics
    local_batch: int  # b, samples
    partition: str  # kind of the partition
    # for each strategy and M: strategy, world_size, samples_per_rank, effective_samples (n),
    # label_divergence (total variation, 0 to 1), accuracy (share), loss_points (accuracy lost
    # against global shuffle on as many ranks, points), low, high (90 % of loss_points, over seeds;
    # empty of one seed)
    settings: pd.DataFrame
    # of loss = c (1/n - 1/n of global shuffle), points: least squares, and 90 % by Student's t;
    # NaN where shards are not random or there are too few settings
    c_points: float
    c_low: float
    c_high: float
    rms: float  # points, scatter of the settings about it
    seeds: int  # draws of shards and exchange

    def save(self, path: str | Path) -> None:
        """Write it to a JSON file, which ``simshuffle accuracy --screening`` reads.

        The file is replaced if it exists. NaN becomes null. Beside the fields, it has
        'norm' and 'curve': n, loss_points, low and high of each setting.
        """
        values = {
            key: value for key, value in self.__dict__.items() if key != "settings"
        }
        numbers = {
            key: None if isinstance(value, float) and isnan(value) else value
            for key, value in values.items()
        }
        rows = json.loads(self.settings.to_json(orient="records", double_precision=10))
        column_of_key = {
            "n": "effective_samples",
            "loss_points": "loss_points",
            "low": "low",
            "high": "high",
        }
        curve = [
            {key: row[column] for key, column in column_of_key.items()} for row in rows
        ]
        with whole_file(Path(path)) as file:
            json.dump(
                {**numbers, "norm": "batch", "curve": curve, "settings": rows},
                file,
                indent=1,
            )

    def verdict(self, tolerance: float = 0.5) -> str:
        """Return the lines of the verdict: how many settings need a full study to lose
        at most ``tolerance`` points, and on what that rests.

        It is for settings whose loss, or the upper end of its interval, is more; of one
        seed the loss alone counts. The setting of the most loss is named, and the one
        whose shards' labels differ most from the set's, if by more than `SHIFTED`.
        """
        is_global = self.settings["strategy"] == GLOBAL.kind
        compared = self.settings[~is_global]
        if not len(compared):
            return "No strategy was compared with global shuffle."
        worst = compared.sort_values("loss_points").iloc[-1]
        worst_text = (
            f"{worst['strategy']} on {worst['world_size']} ranks,"
            f" {worst['loss_points']:.2f}"
        )
        above = int((compared[["loss_points", "high"]].max(axis=1) > tolerance).sum())
        rests_on = [
            f"{self.seeds} draws of shards" if self.seeds > 1 else "one draw of shards",
            "losses through weights that are trained with a strategy are left out",
        ]
        global_shuffle = self.settings[is_global].set_index("world_size")
        global_divergence = compared["world_size"].map(
            global_shuffle["label_divergence"]
        )
        extra_divergence = compared["label_divergence"] - global_divergence
        if extra_divergence.max() > SHIFTED:
            row = compared.assign(extra=extra_divergence).sort_values("extra").iloc[-1]
            rests_on.append(
                f"under {row['strategy']} on {row['world_size']} ranks, labels of shards differ"
                f" from the set's (divergence {row['label_divergence']:.2f} of 1): trainings on"
                " such shards lost up to fifty times what a screening said"
            )
        limit_text = f"more than {tolerance:g} points through"
        answer = f"No setting loses {limit_text} its statistics (most: {worst_text})."
        if above:
            answer = (
                f"{above} of {len(compared)} settings may lose {limit_text} their statistics (most:"
                f" {worst_text})."
            )
        verdict = Verdict(
            [answer],
            rests_on=join_sentences(rests_on),
            measure_next="these settings, by trainings (train_study)." if above else "",
        )
        return verdict.text()
