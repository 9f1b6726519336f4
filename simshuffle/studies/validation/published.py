"""What ParaDL's report measured and projected of divided training on ABCI, and its names among the
rows that are validated."""

from __future__ import annotations

import csv
from dataclasses import dataclass

from simshuffle.spec.library import shipped

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
        samples = f"{self.group_batch} sample{'s' if self.group_batch > 1 else ''} a group"
        return f"{MODELS[self.model]}, {self.strategy}, {self.gpus} GPUs, {samples}"

    @property
    def quantity(self) -> str:
        """The quantity that is predicted."""
        if self.part == "total":
            return "epoch" if self.strategy == "data" else "compute and communication"
        return self.part


def published() -> list[Published]:
    """All lines, in their order."""
    path = shipped("validation") / "data" / "paradl_2021.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return [_line(record) for record in csv.DictReader(file)]


def _line(record: dict[str, str]) -> Published:
    numbers = {
        name: float(record[name]) if record[name] else None
        for name in ("measured", "low", "high", "paradl")
    }
    counts = {name: int(record[name]) for name in ("gpus", "ways", "group_batch")}
    texts = {name: record[name] for name in ("model", "strategy", "part", "remark", "source")}
    return Published(**texts, **counts, **numbers)  # type: ignore[arg-type]
