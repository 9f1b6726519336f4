"""What an audit counted: its tables, its verdict, its result folder."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from simshuffle.extensions.resuming.accounts import (
    WORST,
    Later,
    Second,
    count_broken,
    count_later,
    count_second,
    describe_later,
    describe_second,
    is_right,
    outcome_after,
)
from simshuffle.extensions.resuming.auditing import Audit, AuditOutcome
from simshuffle.extensions.resuming.ranks import HANGS as NO_BATCH
from simshuffle.report.folders import write_folder
from simshuffle.studies.loader.resume_tables import (
    AGAIN,
    GOES_ON,
    HANGS,
    REFUSES,
    RESUMES,
    Meetings,
    change_of,
    meetings,
    right,
    row_of,
)
from simshuffle.study.schema import Column, Schema, amount, count, text
from simshuffle.study.study import versions
from simshuffle.workload.orders.order import Readers
from simshuffle.workload.resuming.account import Account

if TYPE_CHECKING:
    from rich.table import Table

KIND = "audit"
"""Of a result folder."""
_AFTER = {
    "lost_later": count(
        "samples that the epochs after it would have had, and have not",
        empty=True,
        head="lost\nlater",
    ),
    "twice_later": count(
        "rows of these epochs whose sample the epoch had before, beyond those there would be",
        empty=True,
        head="twice\nlater",
    ),
    "second": text(
        "where the run that went on was killed once more, as EPOCH:STEP, steps since it went on or"
        " the epoch began; empty where it was not"
    ),
    "second_outcome": text("outcome of the worst of these; empty where there is none"),
    "second_lost": count(
        "samples lost of the epoch that was broken off twice, and of those after it",
        empty=True,
        head="lost\n2nd",
    ),
    "second_twice": count("the same, that come more than once", empty=True, head="twice\n2nd"),
}
"""Columns on the epochs after the broken one, and on a second crash."""
AUDITED = Schema({**RESUMES.columns, **_AFTER}, key=RESUMES.key)
_COUNTS = ("trained", "rest", "lost", "repeated", "twice", "twice_whole", "never", "continues")
POINTS = Schema(
    {
        "change": RESUMES.columns["change"],
        "epoch": count("in which the loader was killed, from 0"),
        "step": count("of that epoch after which its state was saved", 1),
        "further": count("batches that it went on before it was killed"),
        "outcome": RESUMES.columns["outcome"],
        **{name: RESUMES.columns[name] for name in _COUNTS},
        **_AFTER,
        "says": text("the error of a loader that does not go on; else empty"),
    },
    key=("change", "epoch", "step", "further"),
)
_SECONDS = ".3f"
COSTS = Schema(
    {
        "change": RESUMES.columns["change"],
        "state_nbytes": count(
            "bytes of the saved state of the rank with most, pickled; the largest of all points",
            empty=True,
            head="state of\na rank",
            look="bytes",
        ),
        "made_s": amount(
            "s of make(run), of the slowest rank; the median of all points",
            empty=True,
            head="s to\nmake",
            look=_SECONDS,
        ),
        "made_first_s": amount(
            "the same, with the first batch", empty=True, head="s to 1st\nbatch", look=_SECONDS
        ),
        "resumed_s": amount(
            "s of resume(run, states)", empty=True, head="s to\nresume", look=_SECONDS
        ),
        "resumed_first_s": amount(
            "the same, with the first batch", empty=True, head="s to 1st\nbatch", look=_SECONDS
        ),
    },
    key=("change",),
)
SCHEMAS = {"resumes": AUDITED, "points": POINTS, "costs": COSTS}
FILES = tuple(f"{name}.csv" for name in SCHEMAS)
SHOWN = ["change", "outcome", "trained", "rest", "lost", "repeated", "twice", "never", "continues"]
_LATER = ["lost_later", "twice_later", "second_lost", "second_twice"]
_POINT = ["change", "epoch", "step", "outcome", "rest", "lost", "repeated", "twice", "never"]
_BAD = [GOES_ON, AGAIN, REFUSES, HANGS]
"""Outcomes, the worst one last."""


@dataclass(frozen=True)
class Counted:
    """What became of the samples."""

    audit: Audit

    @cached_property
    def points(self) -> pd.DataFrame:
        """`POINTS`: a row for each change and point."""
        rows = []
        for tried in self.audit.tried:
            point = asdict(tried.point)
            found = self._account(tried)
            counts = dict.fromkeys(_COUNTS, math.nan) | {"continues": ""}
            counts |= {} if found is None else asdict(found)
            outcome = {"outcome": outcome_after(tried), "says": tried.error}
            outcome |= self._after(tried) | self._unknown()
            rows.append({"change": self._change(tried.after)} | point | counts | outcome)
        return POINTS.framed(rows)

    @cached_property
    def resumes(self) -> pd.DataFrame:
        """`AUDITED`: a row for each change, of its worst point."""
        return AUDITED.framed([self._worst(self._of(readers)) for readers in self._changes()])

    @cached_property
    def costs(self) -> pd.DataFrame:
        """`COSTS`: a row for each change."""
        rows = []
        for readers in self._changes():
            tried = self._of(readers)
            known = [one.state_nbytes for one in tried if one.state_nbytes]
            times = (*(of for kind in ("started", "resumed") for of in _medians(tried, kind)),)
            rows.append((self._change(readers), max(known, default=math.nan), *times))
        return COSTS.framed(rows)

    @property
    def wrong(self) -> int:
        """At how many restarts anything is lost, comes again or is refused, in the broken epoch,
        in those after it, or after a second crash."""
        return sum(not self._is_right(tried) for tried in self.audit.tried)

    def _is_right(self, tried: AuditOutcome) -> bool:
        found, later, second = self._account(tried), self._later(tried), self._second(tried)
        if found is None or later.lost_later or later.twice_later or not is_right(second):
            return False
        return right({"outcome": outcome_after(tried), **asdict(found)})

    def _changes(self) -> list[Readers]:
        return list(dict.fromkeys(self.audit.asked.after))

    def _change(self, after: Readers) -> str:
        return change_of(self.audit.asked.before, after)

    def _of(self, after: Readers) -> list[AuditOutcome]:
        return [one for one in self.audit.tried if one.after == after]

    def _account(self, tried: AuditOutcome) -> Account | None:
        """What became of the broken epoch, and whether it and those after it go on as they would
        have; None of a loader that does not go on."""
        found = count_broken(tried, self.audit.asked.size, repeatable=self.audit.repeatable)
        if found is None:
            return None
        worst = max(found.continues, self._later(tried).continues, key=WORST.index)
        return replace(found, continues=worst)

    def _later(self, tried: AuditOutcome) -> Later:
        before = self.audit.whole[self.audit.asked.before]
        return count_later(tried, before[tried.point.epoch + 1 :])

    def _second(self, tried: AuditOutcome) -> Second:
        return count_second(tried, self.audit.asked.size, repeatable=self.audit.repeatable)

    def _after(self, tried: AuditOutcome) -> dict[str, Any]:
        """`_AFTER` of a restart; empty where it does not go on, or nothing comes after it."""
        row: dict[str, Any] = dict.fromkeys(_AFTER, math.nan)
        row |= {"second": "", "second_outcome": ""}
        if len(tried.after_rows) > 1:
            later = self._later(tried)
            row |= {"lost_later": later.lost_later, "twice_later": later.twice_later}
        if tried.second:
            second = asdict(self._second(tried))
            row |= {name: value for name, value in second.items() if name in _AFTER}
        return row

    def _unknown(self) -> dict[str, str]:
        """What nobody can say of a loader that is never the same."""
        return {} if self.audit.repeatable else {"continues": ""}

    def _meetings(self, tried: AuditOutcome) -> Meetings | None:
        """None where no epoch follows."""
        epochs = self.audit.whole[self.audit.asked.before][tried.point.epoch :]
        if tried.error or len(epochs) < 2:
            return None
        return meetings(tried.before_rows[-1], *tried.after_rows[:2], *epochs[:2])

    def _badness(self, one: AuditOutcome) -> tuple[int, int]:
        found, later, second = self._account(one), self._later(one), self._second(one)
        counts = 0 if found is None else found.lost + found.repeated + found.twice
        counts += later.lost_later + later.twice_later + second.second_lost + second.second_twice
        outcomes = [outcome_after(one), *[second.second_outcome] * bool(one.second)]
        return max(_BAD.index(outcome) for outcome in outcomes), counts

    def _worst(self, of: Sequence[AuditOutcome]) -> dict[str, Any]:
        """The row of `AUDITED` of the worst of points."""
        worst = max(of, key=self._badness)
        known = ", ".join(f"{name} {of}" for name, of in self.audit.versions.items())
        row = row_of(
            self.audit.name,
            known,
            self._change(worst.after),
            outcome_after(worst),
            self.audit.asked.size,
            account=self._account(worst),
            mixing=self._meetings(worst),
            why=worst.error,
        )
        after = [describe_later(self._later(worst)), describe_second(self._second(worst))]
        broken = row["says"]
        if any(after):
            broken = broken.replace("Nothing is lost", "In the broken epoch nothing is lost", 1)
        parts = [broken, *after, self._where(worst, of)]
        says = " ".join(part for part in parts if part)
        firsts = _medians(of, "resumed")[1]
        said = {"first_batch_s": firsts, "says": says} | self._after(worst)
        return row | said | self._unknown()

    def _where(self, worst: AuditOutcome, of: Sequence[AuditOutcome]) -> str:
        if len(of) > 1 and len({self._badness(one) for one in of}) == 1:
            return f"(At all {len(of)} points.)"
        more = f", the worst of {len(of)} points" if len(of) > 1 else ""
        return f"(Step {worst.point.step} of epoch {worst.point.epoch}{more}.)"

    def verdict(self) -> str:
        """What is found, and what it rests on."""
        asked, points = self.audit.asked, len({one.point for one in self.audit.tried})
        of = f"{points} point{'s' * (points > 1)}, {asked.size:,} samples, seed {asked.seed}"
        known = [f"{name} {version}" for name, version in self.audit.versions.items()]
        base = ", ".join([of, *known])
        wrong, all_ = self.wrong, len(self.points)
        found = f"loses, repeats or refuses at {wrong} of {all_} restarts" * bool(wrong)
        tried = sum(bool(one.second) for one in self.audit.tried)
        untried = "; a second crash of a run was not tried" * (not wrong and not tried)
        nothing = f"loses, repeats and refuses nothing{untried}"
        return f"{self.audit.name} {found or nothing} ({base})."

    def notes(self) -> list[str]:
        """What has to be known of the numbers, and of errors."""
        unlike = (
            "The loader is not repeatable: with the same seed two uninterrupted runs differ. Lost"
            " is what an epoch, with its rest, misses of all samples, beyond what an uninterrupted"
            " one misses; whether it goes on as it would have cannot be said."
        )
        errors = "An error may be one of the script: -v shows it in full, with its lines."
        failed = any(one.error not in {"", NO_BATCH} for one in self.audit.tried)
        single = (
            f"No epoch after a broken one was run: --epochs {self.audit.asked.epochs + 1} does."
        )
        alone = not any(len(one.after_rows) > 1 for one in self.audit.tried) and not failed
        again = sum(bool(one.second) for one in self.audit.tried)
        twice = (
            f"After {again} of {len(self.audit.tried)} restarts, those that were right, the run was"
            " killed once more, in the same epoch and in the next one."
        )
        notes = [unlike] * (not self.audit.repeatable) + [single] * alone
        return notes + [twice] * bool(again) + [errors] * failed

    def parts(self) -> Iterator[str | Table]:
        """What a terminal shows."""
        yield self.verdict()
        yield from self.notes()
        yield RESUMES.listing(self.resumes, "Worst restart", SHOWN, 2)
        yield from (f"{row['change']}: {row['says']}" for row in _records(self.resumes))
        later = [name for name in _LATER if self.points[name].fillna(0).any()]
        yield POINTS.listing(self.points, "Restarts", _POINT + later)
        yield COSTS.listing(self.costs, "States, and seconds", list(COSTS.columns))

    def tables(self) -> dict[str, pd.DataFrame]:
        """All tables by name."""
        return {"resumes": self.resumes, "points": self.points, "costs": self.costs}

    def as_json(self) -> dict[str, Any]:
        """All as plain values."""
        records = {
            name: [
                {key: _plain(value, SCHEMAS[name].columns[key]) for key, value in row.items()}
                for row in _records(table)
            ]
            for name, table in self.tables().items()
        }
        about = {"verdict": self.verdict(), "repeatable": self.audit.repeatable}
        return about | {"wrong": self.wrong, "versions": {**self.audit.versions}} | records

    def save(self, folder: Path, *, force: bool) -> Path:
        """Write the result folder, whole or not at all; returns it. ``force`` replaces a result
        that is there. Raises an InputError as of `simshuffle.report.folders.check_place`."""
        return write_folder(folder, self._fill, replace=force, known_names=FILES)

    def _fill(self, folder: Path) -> None:
        for name, table in self.tables().items():
            SCHEMAS[name].write(table, folder / name)
        content = b"".join((folder / name).read_bytes() for name in FILES)
        known = versions(("numpy", "pandas"))
        meta = {
            "kind": KIND,
            "fingerprint": hashlib.sha256(content).hexdigest()[:12],
            "command": [*self.audit.words],
            "repeatable": self.audit.repeatable,
            "asked": asdict(self.audit.asked),
            "versions": known | {**self.audit.versions},
        }
        about = {f"{name}.csv": schema.meanings for name, schema in SCHEMAS.items()}
        for name, values in (("meta.json", meta), ("columns.json", about)):
            text = json.dumps(values, indent=1, allow_nan=False)
            (folder / name).write_text(f"{text}\n", encoding="utf-8")


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def _medians(of: Sequence[AuditOutcome], kind: str) -> tuple[float, float]:
    """Of what points took, of those that have it: to make or resume, and to the first batch."""
    times = [getattr(one, kind) for one in of]
    made = [each.made_s for each in times if each.made_s is not None]
    first = [each.first_batch_s for each in times if each.first_batch_s is not None]
    return (
        statistics.median(made) if made else math.nan,
        statistics.median(first) if first else math.nan,
    )


def _plain(value: Any, column: Column) -> Any:
    if pd.isna(value):
        return None
    return int(value) if column.kind == "count" else value
