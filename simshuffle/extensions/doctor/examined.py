"""A training that was examined: its record, its diagnosis, what was tried; its result folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.diagnosis import Diagnosis, diagnose
from simshuffle.extensions.doctor.gains import Gain
from simshuffle.extensions.doctor.records.reading import RECORD, read
from simshuffle.extensions.doctor.records.record import Record
from simshuffle.extensions.doctor.shown import batch_table, doctor_chart, tries_parts
from simshuffle.extensions.doctor.trying import TrialOutcome
from simshuffle.report.folders import write_folder
from simshuffle.report.style import sign_figure
from simshuffle.study.study import versions

if TYPE_CHECKING:
    from rich.table import Table

    from simshuffle.extensions.doctor.predicting import Prediction

KIND, FIGURE = "doctor", "doctor"
"""Of a result folder; the name of its figure."""
DIAGNOSIS, TRIES, SCENARIOS = "diagnosis.json", "tries.json", "scenarios"
FILES = (RECORD, DIAGNOSIS, TRIES, SCENARIOS)
"""What a result folder holds beside its figure and meta.json."""


@dataclass(frozen=True)
class Examined:
    """A record and what is found in it."""

    record: Record
    diagnosis: Diagnosis
    tries: Sequence[TrialOutcome] = ()
    prediction: Prediction | None = None  # on another machine; a folder has its scenarios

    def parts(self) -> list[str | Table]:
        """Return the texts and tables of the diagnosis, the tries and the prediction."""
        diagnosis = [*self.diagnosis.parts(), batch_table(self.diagnosis.loop)]
        return [*diagnosis, *self.tried(), *self.predicted()]

    def tried(self) -> list[str | Table]:
        """What it shows of the tries."""
        return tries_parts(self.tries)

    def predicted(self) -> list[str | Table]:
        """What it shows of the prediction."""
        return [] if self.prediction is None else self.prediction.parts()

    def as_json(self) -> dict[str, Any]:
        """All as plain values, in s and shares."""
        tries = [{**asdict(of), "within": of.within} for of in self.tries]
        prediction = {} if self.prediction is None else {"prediction": self.prediction.as_json()}
        return {"diagnosis": self.diagnosis.as_json(), "tries": tries, **prediction}

    def save(self, folder: Path, *, force: bool) -> Path:
        """Write the result folder, whole or not at all; returns it. ``force`` replaces a result
        that is there. Raises an InputError as of `simshuffle.report.folders.check_place`."""
        return write_folder(folder, self._fill, replace=force, known_names=FILES)

    def _fill(self, folder: Path) -> None:
        # matplotlib, where it is drawn
        from simshuffle.report import canvas, paper  # noqa: PLC0415

        self.record.write(folder / RECORD)
        fingerprint = hashlib.sha256((folder / RECORD).read_bytes()).hexdigest()[:12]
        found, tries = self.diagnosis.as_json(), [asdict(of) for of in self.tries]
        meta = {"kind": KIND, "fingerprint": fingerprint, "versions": versions(("numpy", "pandas"))}
        texts = {"meta.json": meta, DIAGNOSIS: found, **({TRIES: tries} if tries else {})}
        for name, values in texts.items():
            text = json.dumps(values, indent=1, allow_nan=False)
            (folder / name).write_text(f"{text}\n", encoding="utf-8")
        if self.prediction is not None:
            (folder / SCENARIOS).mkdir()
            self.prediction.write(folder / SCENARIOS)
        chart = doctor_chart(self.diagnosis, self.tries)
        canvas.save(paper.draw(chart), folder / FIGURE, sign_figure(FIGURE, [fingerprint]))


def examined(path: Path) -> Examined:
    """A record or a trace, or a folder that `Examined.save` wrote, with its diagnosis. Raises an
    InputError if it is none, or has no loop."""
    record = replace(read(path), source=str(path))
    return Examined(record, diagnose(record), _tries(path / TRIES))


def _tries(path: Path) -> list[TrialOutcome]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return [
            TrialOutcome(
                str(of["name"]), _gain(of["predicted"]), _gain(of["measured"]), str(of["why"])
            )
            for of in values
        ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError, TypeError, KeyError) as error:
        refuse("", f"must be what was tried: {error}", "", "Remove it, or try again.", str(path))


def _gain(values: Any) -> Gain | None:
    return None if values is None else Gain(*map(float, values))
