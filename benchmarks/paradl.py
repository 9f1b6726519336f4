"""What ParaDL's report measured and projected of divided training on ABCI, its names among the rows
that are validated, and its projections beside our predictions."""

from __future__ import annotations

import csv
from dataclasses import dataclass

import pandas as pd
from validation_tables import markdown_table

from simshuffle.extensions.calibration.validation.text import format_range, format_value
from simshuffle.spec.library import shipped_folder

SETS = {"data": "parallelism_data", "iteration with input": "parallelism_log"}
"""The set of a strategy or a part; `REPORT` for all others."""
REPORT = "parallelism"
MODELS = {
    "resnet50": "ResNet-50",
    "vgg16": "VGG-16",
    "alexnet": "AlexNet",
    "cosmoflow_256": "CosmoFlow 256^3",
    "cosmoflow_512": "CosmoFlow 512^3",
}


@dataclass(frozen=True)
class Published:
    """A line of ``validation/data/paradl_2021.csv``.

    Attributes:
        model, strategy: what was trained, and how it was divided.
        gpus: in all.
        ways: of a group that works on the same samples.
        group_batch: samples of a group in an iteration.
        part: 'compute', 'communication' or both as 'total', s an epoch; 'iteration' for both in one
            iteration, 'iteration with input' for all of it.
        measured: s; None where nothing was measured.
        low, high: s; what was measured over several epochs, None for one.
        paradl: s that ParaDL projects; None where it does not.
        remark: on the numbers.
        source: where they are published.
    """

    model: str
    strategy: str
    gpus: int
    ways: int
    group_batch: int
    part: str
    measured: float | None
    low: float | None
    high: float | None
    paradl: float | None
    remark: str
    source: str

    @property
    def set(self) -> str:
        """The set of its row."""
        return SETS.get(self.strategy) or SETS.get(self.part, REPORT)

    @property
    def case(self) -> str:
        """What was measured, for a reader."""
        samples = (
            f"{self.group_batch} sample{'s' if self.group_batch > 1 else ''} a group"
        )
        return f"{MODELS[self.model]}, {self.strategy}, {self.gpus} GPUs, {samples}"

    @property
    def quantity(self) -> str:
        """The quantity that is predicted."""
        if self.part == "total":
            return "epoch" if self.strategy == "data" else "compute and communication"
        return self.part


def published() -> list[Published]:
    """All lines, in their order."""
    path = shipped_folder("validation") / "data" / "paradl_2021.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return [_line(record) for record in csv.DictReader(file)]


def _line(record: dict[str, str]) -> Published:
    numbers = {
        name: float(record[name]) if record[name] else None
        for name in ("measured", "low", "high", "paradl")
    }
    counts = {name: int(record[name]) for name in ("gpus", "ways", "group_batch")}
    texts = {
        name: record[name] for name in ("model", "strategy", "part", "remark", "source")
    }
    return Published(**texts, **counts, **numbers)  # type: ignore[arg-type]


PARTS = ("total", "iteration")
"""Parts that are compared: all of an epoch, or of an iteration."""
REPORTED = {
    ("resnet50", "data"): 0.84,
    ("vgg16", "data"): 0.76,
    ("resnet50", "channel"): 0.75,
    ("resnet50", "filter+data"): 0.69,
    ("resnet50", "spatial+data"): 0.60,
}
"""Mean accuracy that ParaDL's report says it has, on its own points, some with more GPUs."""


def accuracy(predicted: float, measured: float) -> float:
    """ParaDL's measure: 1 less the relative error."""
    return 1 - abs(predicted - measured) / measured


def points(results: pd.DataFrame) -> pd.DataFrame:
    """One row for each measured point that both predict: model, strategy, gpus, group_batch, use,
    measured, predicted, predicted_low, predicted_high and paradl (s), ours and theirs (accuracy).

    Args:
        results: the table of a validation, with the sets of divided training.
    """
    of_row = {(row["case"], row["quantity"]): row for row in results.to_dict("records")}
    out = []
    for line in published():
        row = of_row.get((line.case, line.quantity))
        if (
            row is None
            or line.part not in PARTS
            or line.paradl is None
            or line.measured is None
        ):
            continue
        out.append(
            {
                **{name: getattr(line, name) for name in ("model", "strategy", "gpus")},
                "group_batch": line.group_batch,
                "unit": "s",
                **{name: row[name] for name in ("use", "measured", "predicted")},
                **{name: row[name] for name in ("predicted_low", "predicted_high")},
                "paradl": line.paradl,
                "ours": accuracy(row["predicted"], line.measured),
                "theirs": accuracy(line.paradl, line.measured),
            }
        )
    return pd.DataFrame(out)


def by_strategy(table: pd.DataFrame) -> pd.DataFrame:
    """The means of `points`, for each model and strategy and for all, without and with data
    parallelism: on those that were predicted, and with those on which a parameter was fitted; NaN
    where there are none."""
    groups = [
        (key, part) for key, part in table.groupby(["model", "strategy"], sort=False)
    ]
    groups += [
        (("", "all but data"), table[table["strategy"] != "data"]),
        (("", "all"), table),
    ]
    out = []
    for (model, strategy), part in groups:
        new = part[part["use"] == "predict"]
        out.append(
            {
                "model": model,
                "strategy": strategy,
                "predicted": len(new),
                "ours": new["ours"].mean(),
                "theirs": new["theirs"].mean(),
                "points": len(part),
                "ours_all": part["ours"].mean(),
                "theirs_all": part["theirs"].mean(),
                "reported": REPORTED.get((str(model), str(strategy)), float("nan")),
            }
        )
    return pd.DataFrame(out)


def markdown_means(table: pd.DataFrame) -> str:
    """`by_strategy` as a Markdown table."""
    headings = [
        "training",
        "predicted",
        "ours",
        "ParaDL",
        "with fitted",
        "ours",
        "ParaDL",
        "report",
    ]
    rows = [
        [
            " ".join(filter(None, (MODELS.get(row["model"], ""), row["strategy"]))),
            str(row["predicted"]),
            *(_share(row[name]) for name in ("ours", "theirs")),
            str(row["points"]),
            *(_share(row[name]) for name in ("ours_all", "theirs_all", "reported")),
        ]
        for row in by_strategy(table).to_dict("records")
    ]
    return markdown_table(headings, rows, range(1, len(headings)))


def markdown_points(table: pd.DataFrame) -> str:
    """`points` as a Markdown table."""
    headings = [
        "training",
        "GPUs",
        "",
        "measured",
        "ours",
        "interval",
        "ParaDL",
        "accuracy",
        "ParaDL's",
    ]
    rows = [
        [
            f"{MODELS[row['model']]} {row['strategy']}",
            str(row["gpus"]),
            "fitted" if row["use"] == "fit" else "",
            *(format_value(row[name], "s") for name in ("measured", "predicted")),
            format_range(row["predicted_low"], row["predicted_high"], "s"),
            format_value(row["paradl"], "s"),
            _share(row["ours"]),
            _share(row["theirs"]),
        ]
        for row in table.to_dict("records")
    ]
    return markdown_table(headings, rows, (1, *range(3, len(headings))))


def _share(share: float) -> str:
    return "–" if pd.isna(share) else f"{share:.2f}"
