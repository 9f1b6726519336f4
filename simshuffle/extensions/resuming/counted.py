"""Report an audit: its tables, its verdict, its result folder."""

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
    LaterEpochs,
    SecondCrash,
    count_broken,
    count_later,
    count_second,
    describe_later,
    describe_second,
    is_right,
    outcome_after,
)
from simshuffle.extensions.resuming.audit_tables import (
    AUDITED,
    COSTS,
    COUNT_COLUMNS,
    FILES,
    LATER_COLUMNS,
    LATER_COUNTS,
    OUTCOMES_BY_BADNESS,
    POINT_COLUMNS,
    POINTS,
    SCHEMAS,
    SHOWN_COLUMNS,
)
from simshuffle.extensions.resuming.outcomes import Audit, AuditOutcome
from simshuffle.extensions.resuming.ranks import HANGS as NO_BATCH
from simshuffle.report.folders import write_folder
from simshuffle.studies.loader.resume_tables import (
    RESUMES,
    RepeatedPairs,
    count_meetings,
    describe_change,
    is_exact,
    make_row,
)
from simshuffle.study.schema import Column
from simshuffle.study.study import versions
from simshuffle.study.verdict import Verdict, join_sentences
from simshuffle.workload.orders.order import Readers
from simshuffle.workload.resuming.account import Account

if TYPE_CHECKING:
    from rich.table import Table

KIND = "audit"
"""Of a result folder."""


@dataclass(frozen=True)
class AuditReport:
    """The fate of the samples of an audited loader."""

    audit: Audit

    @cached_property
    def points(self) -> pd.DataFrame:
        """Table `POINTS`: a row for each change and point, by points, then by changes.

        Counts are NaN where the loader refuses or hangs.
        """
        rows = []
        for outcome in self.audit.outcomes:
            point = asdict(outcome.point)
            counted = self._account(outcome)
            counts = dict.fromkeys(COUNT_COLUMNS, math.nan) | {"continues": ""}
            counts |= {} if counted is None else asdict(counted)
            outcome_columns = {"outcome": outcome_after(outcome), "says": outcome.error}
            outcome_columns |= self._later_columns(outcome) | self._unknown_columns()
            rows.append(
                {"change": self._change(outcome.after)}
                | point
                | counts
                | outcome_columns
            )
        return POINTS.framed(rows)

    @cached_property
    def resumes(self) -> pd.DataFrame:
        """Table `AUDITED`: a row for each change, of its worst point (`_badness`).

        ``first_batch_s`` alone is the median of all points of the change.
        """
        return AUDITED.framed(
            [self._worst(self._outcomes_of(readers)) for readers in self._changes()]
        )

    @cached_property
    def costs(self) -> pd.DataFrame:
        """Table `COSTS`: a row for each change.

        The state is the largest of all points, NaN if none was saved. Seconds are of
        the slowest rank, the median of all points.
        """
        rows = []
        for readers in self._changes():
            outcomes = self._outcomes_of(readers)
            state_sizes = [
                outcome.state_nbytes for outcome in outcomes if outcome.state_nbytes
            ]
            times = (
                *(
                    seconds
                    for kind in ("started", "resumed")
                    for seconds in _median_times(outcomes, kind)
                ),
            )
            rows.append(
                (self._change(readers), max(state_sizes, default=math.nan), *times)
            )
        return COSTS.framed(rows)

    @property
    def num_wrong(self) -> int:
        """Number of restarts at which anything is lost, comes again or is refused.

        A loader that hangs or begins again counts, too; another order of samples does
        not. The broken epoch counts, the epochs after it, and a second crash.
        """
        return sum(not self._is_right(tried) for tried in self.audit.outcomes)

    @property
    def _num_second(self) -> int:
        """Number of restarts whose run was killed once more."""
        return sum(bool(outcome.second) for outcome in self.audit.outcomes)

    def _is_right(self, outcome: AuditOutcome) -> bool:
        """Return whether a restart loses, repeats and refuses nothing, also later.

        A loader that hangs or begins again is not right; the order does not count.
        """
        counted = self._account(outcome)
        later = self._later(outcome)
        second = self._second(outcome)
        if (
            counted is None
            or later.lost_later
            or later.twice_later
            or not is_right(second)
        ):
            return False
        return is_exact({"outcome": outcome_after(outcome), **asdict(counted)})

    def _changes(self) -> list[Readers]:
        """Return the readers that resume, each once, in the order of the request."""
        return list(dict.fromkeys(self.audit.request.after))

    def _change(self, readers: Readers) -> str:
        """Return the change of ranks and workers to ``readers``, in words."""
        return describe_change(self.audit.request.before, readers)

    def _outcomes_of(self, readers: Readers) -> list[AuditOutcome]:
        """Return the outcomes of restarts with these readers."""
        return [outcome for outcome in self.audit.outcomes if outcome.after == readers]

    def _account(self, outcome: AuditOutcome) -> Account | None:
        """Return the account of the broken epoch; None if the loader refuses or hangs.

        Its ``continues`` is the worst of that epoch and later ones.
        """
        counted = count_broken(
            outcome, self.audit.request.size, repeatable=self.audit.repeatable
        )
        if counted is None:
            return None
        worst = max(counted.continues, self._later(outcome).continues, key=WORST.index)
        return replace(counted, continues=worst)

    def _later(self, outcome: AuditOutcome) -> LaterEpochs:
        """Return what later epochs lack; an order of the ranks before is right too."""
        uninterrupted = self.audit.uninterrupted[self.audit.request.before]
        return count_later(outcome, uninterrupted[outcome.point.epoch + 1 :])

    def _second(self, outcome: AuditOutcome) -> SecondCrash:
        """Return what comes of a second crash, at the worst place; `NO_SECOND_CRASH`
        if none was tried.
        """
        return count_second(
            outcome, self.audit.request.size, repeatable=self.audit.repeatable
        )

    def _later_columns(self, outcome: AuditOutcome) -> dict[str, Any]:
        """Return `LATER_COLUMNS` of a restart.

        Counts are NaN and texts '' where it does not go on, no epoch follows, or no
        second crash was tried.
        """
        row: dict[str, Any] = dict.fromkeys(LATER_COLUMNS, math.nan)
        row |= {"second": "", "second_outcome": ""}
        if len(outcome.after_rows) > 1:
            later = self._later(outcome)
            row |= {"lost_later": later.lost_later, "twice_later": later.twice_later}
        if outcome.second:
            second = asdict(self._second(outcome))
            row |= {
                name: value for name, value in second.items() if name in LATER_COLUMNS
            }
        return row

    def _unknown_columns(self) -> dict[str, str]:
        """Return the columns that stay empty, as '', for a loader that is not
        repeatable; {} if it is.
        """
        return {} if self.audit.repeatable else {"continues": ""}

    def _meetings(self, outcome: AuditOutcome) -> RepeatedPairs | None:
        """Return how samples that shared a batch of the broken epoch share one again in
        the next epoch.

        None where the loader refuses or hangs, or no epoch follows.
        """
        epochs = self.audit.uninterrupted[self.audit.request.before][
            outcome.point.epoch :
        ]
        if outcome.error or len(epochs) < 2:
            return None
        return count_meetings(
            outcome.before_rows[-1], *outcome.after_rows[:2], *epochs[:2]
        )

    def _badness(self, outcome: AuditOutcome) -> tuple[int, int]:
        """Return the sort key of an outcome, the worst one largest.

        It is the place in `OUTCOMES_BY_BADNESS` of the worse of both crashes, then the
        rows that are lost or come again.
        """
        counted = self._account(outcome)
        later = self._later(outcome)
        second = self._second(outcome)
        bad_rows = (
            0 if counted is None else counted.lost + counted.repeated + counted.twice
        )
        bad_rows += (
            later.lost_later
            + later.twice_later
            + second.second_lost
            + second.second_twice
        )
        outcomes = [
            outcome_after(outcome),
            *[second.second_outcome] * bool(outcome.second),
        ]
        return max(OUTCOMES_BY_BADNESS.index(name) for name in outcomes), bad_rows

    def _worst(self, outcomes: Sequence[AuditOutcome]) -> dict[str, Any]:
        """Return the row of `AUDITED` of the worst outcome, with its sentences.

        The first of equally bad outcomes counts. Seconds to the first batch are the
        median of all ``outcomes``, of which there must be one or more.
        """
        worst = max(outcomes, key=self._badness)
        library_versions = ", ".join(
            f"{name} {version}" for name, version in self.audit.versions.items()
        )
        row = make_row(
            self.audit.name,
            library_versions,
            self._change(worst.after),
            outcome_after(worst),
            self.audit.request.size,
            account=self._account(worst),
            repeated_pairs=self._meetings(worst),
            reason=worst.error,
        )
        later_sentences = [
            describe_later(self._later(worst)),
            describe_second(self._second(worst)),
        ]
        broken = row["says"]
        if any(later_sentences):
            broken = broken.replace(
                "Nothing is lost", "In the broken epoch nothing is lost", 1
            )
        parts = [broken, *later_sentences, self._describe_place(worst, outcomes)]
        sentences = " ".join(part for part in parts if part)
        firsts = _median_times(outcomes, "resumed")[1]
        last_columns = {
            "first_batch_s": firsts,
            "says": sentences,
        } | self._later_columns(worst)
        return row | last_columns | self._unknown_columns()

    def _describe_place(
        self, worst: AuditOutcome, outcomes: Sequence[AuditOutcome]
    ) -> str:
        """Say in brackets where the worst outcome was, or that all are equally bad."""
        if (
            len(outcomes) > 1
            and len({self._badness(outcome) for outcome in outcomes}) == 1
        ):
            return f"(At all {len(outcomes)} points.)"
        among = f", the worst of {len(outcomes)} points" if len(outcomes) > 1 else ""
        return f"(Step {worst.point.step} of epoch {worst.point.epoch}{among}.)"

    def verdict(self) -> Verdict:
        """Return at how many restarts something is lost or repeated, on what that
        rests, and what was not tried.
        """
        request = self.audit.request
        points = len({outcome.point for outcome in self.audit.outcomes})
        basis = f"{points} point{'s' * (points > 1)}, {request.size:,} samples, seed {request.seed}"
        library_versions = [
            f"{name} {version}" for name, version in self.audit.versions.items()
        ]
        wrong = self.num_wrong
        answer = "loses and repeats no samples, and always goes on."
        if wrong:
            answer = "loses or repeats samples, or does not go on, at"
            answer += f" {wrong} of {len(self.points)} restarts."
        untried = ["a second crash of a run"] * (not wrong and not self._num_second)
        if self._lacks_later_epochs:
            untried.append(
                f"an epoch after a broken one (--epochs {request.epochs + 1})"
            )
        return Verdict(
            [f"{self.audit.name} {answer}"],
            rests_on=join_sentences([", ".join([basis, *library_versions])]),
            measure_next=join_sentences(untried),
        )

    @property
    def _has_failed(self) -> bool:
        """Return whether a resumed loader failed; a loader that hangs has not."""
        return any(
            outcome.error not in {"", NO_BATCH} for outcome in self.audit.outcomes
        )

    @property
    def _lacks_later_epochs(self) -> bool:
        """Return whether no epoch after a broken epoch was run, though no loader failed."""
        has_later = any(len(outcome.after_rows) > 1 for outcome in self.audit.outcomes)
        return not has_later and not self._has_failed

    def notes(self) -> list[str]:
        """Return notes on how to read the numbers, and on errors; those that apply."""
        unlike = (
            "The loader is not repeatable: two uninterrupted runs with the same seed differ. So"
            " lost"
            " counts the samples that a broken epoch and its rest miss, beyond those that an"
            " uninterrupted epoch misses. Nobody can say whether it goes on as if uninterrupted."
        )
        errors = "An error may come from the script: -v shows each error in full, with its lines."
        num_second = self._num_second
        restarts = len(self.audit.outcomes)
        twice = (
            f"{num_second} of {restarts} restarts lost and repeated nothing. These runs were killed"
            " once more, in the same epoch and in the next one."
        )
        notes = [unlike] * (not self.audit.repeatable) + [twice] * bool(num_second)
        return notes + [errors] * self._has_failed

    def parts(self) -> Iterator[str | Table]:
        """Yield what a terminal shows: the tables of the worst restarts, of all
        restarts and of costs, notes, and the verdict.
        """
        yield RESUMES.listing(self.resumes, "Worst restart", SHOWN_COLUMNS, 2)
        yield from (f"{row['change']}: {row['says']}" for row in _records(self.resumes))
        later = [name for name in LATER_COUNTS if self.points[name].fillna(0).any()]
        yield POINTS.listing(self.points, "Restarts", POINT_COLUMNS + later)
        yield COSTS.listing(self.costs, "States, and seconds", list(COSTS.columns))
        yield from self.notes()
        yield from self.verdict().lines()

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return all tables by name: resumes, points and costs."""
        return {"resumes": self.resumes, "points": self.points, "costs": self.costs}

    def as_json(self) -> dict[str, Any]:
        """Return the verdict and all tables as plain values, None for what is missing.

        Keys beside the tables' names: verdict, verdict_parts, repeatable, wrong (`num_wrong`) and
        versions (of the loader's libraries). A table is a list of its rows.
        """
        records = {
            name: [
                {
                    key: _plain_value(value, SCHEMAS[name].columns[key])
                    for key, value in row.items()
                }
                for row in _records(table)
            ]
            for name, table in self.tables().items()
        }
        verdict = self.verdict()
        about = {"verdict": verdict.text(), "repeatable": self.audit.repeatable}
        return (
            verdict.as_json()
            | about
            | {"wrong": self.num_wrong, "versions": {**self.audit.versions}}
            | records
        )

    def save(self, folder: Path, *, force: bool) -> Path:
        """Write the result folder, whole or not at all, and return its path.

        ``force`` replaces a result that is there.

        Raises:
            InputError: as of `simshuffle.report.folders.check_place`.
        """
        return write_folder(folder, self._fill, replace=force, known_names=FILES)

    def _fill(self, folder: Path) -> None:
        """Write all tables, meta.json and columns.json into ``folder``.

        The fingerprint is of the contents of the tables.
        """
        for name, table in self.tables().items():
            SCHEMAS[name].write(table, folder / name)
        content = b"".join((folder / name).read_bytes() for name in FILES)
        package_versions = versions(("numpy", "pandas"))
        meta = {
            "kind": KIND,
            "fingerprint": hashlib.sha256(content).hexdigest()[:12],
            "command": [*self.audit.words],
            "repeatable": self.audit.repeatable,
            "asked": asdict(self.audit.request),
            "versions": package_versions | {**self.audit.versions},
        }
        column_meanings = {
            f"{name}.csv": schema.meanings for name, schema in SCHEMAS.items()
        }
        for name, values in (("meta.json", meta), ("columns.json", column_meanings)):
            text = json.dumps(values, indent=1, allow_nan=False)
            (folder / name).write_text(f"{text}\n", encoding="utf-8")


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as mappings by column."""
    return [
        {str(name): value for name, value in row.items()}
        for row in table.to_dict("records")
    ]


def _median_times(outcomes: Sequence[AuditOutcome], kind: str) -> tuple[float, float]:
    """Return the median s to make or resume, and to the first batch.

    ``kind`` is 'started' or 'resumed'. Both times count from the call of `make` or
    `resume`, of the slowest rank. Outcomes without are left out; NaN if none has any.
    """
    times = [getattr(outcome, kind) for outcome in outcomes]
    made_seconds = [
        run_times.made_s for run_times in times if run_times.made_s is not None
    ]
    first_batch_seconds = [
        run_times.first_batch_s
        for run_times in times
        if run_times.first_batch_s is not None
    ]
    return (
        statistics.median(made_seconds) if made_seconds else math.nan,
        statistics.median(first_batch_seconds) if first_batch_seconds else math.nan,
    )


def _plain_value(value: Any, column: Column) -> Any:
    """Return a value of a column for JSON: None if it is missing, whole counts."""
    if pd.isna(value):
        return None
    return int(value) if column.kind == "count" else value
