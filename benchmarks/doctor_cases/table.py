"""Tables of judged cases: confusion, calibration of confidence, gains, lines."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from statistics import median

from benchmarks.doctor_cases.judge import HEALTHY, LEAST_GAIN, names_cause

BINS = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)
POINTS = 0.15

CsvRow = dict[str, str]


def is_right(row: CsvRow) -> bool:
    """Return whether the first name is a true cause, or healthy where nothing ails."""
    truths = [row["truth_first"], *filter(None, [row["truth_second"]])]
    return any(names_cause(truth, row["named_first"]) for truth in truths)


def names_remedy(row: CsvRow) -> bool:
    """Return whether the first name is right, or names a first worker that gains 15 %."""
    worker_helps = float(row["worker_gain"]) >= LEAST_GAIN
    return is_right(row) or (worker_helps and row["named_first"] == "workers")


def text_of(rows: list[CsvRow]) -> str:
    """Return all tables of judged cases as Markdown."""
    judged = [row for row in rows if not row["error"]]
    parts = [
        summary(rows, judged),
        confusion(judged),
        calibration(judged),
        gains(judged),
        gain_rows(judged),
        wrong_cases(judged),
    ]
    return "\n\n".join(parts)


def share(part: int, total: int) -> str:
    """Return a count beside its total and the percentage."""
    return f"{part} of {total}" + (f" ({part / total:.0%})" if total else "")


def summary(rows: list[CsvRow], judged: list[CsvRow]) -> str:
    """Return counts of right names, of healthy cases, and the noise of measuring."""
    sick = [row for row in judged if row["truth_first"] != HEALTHY]
    healthy = [row for row in judged if row["truth_first"] == HEALTHY]
    settled = [row for row in judged if row["is_settled"] == "1"]
    settled_healthy = [row for row in settled if row in healthy]
    double = [row for row in sick if row["truth_second"]]
    both = [
        row
        for row in double
        if all(
            names_cause(row[truth], row["named_first"])
            or names_cause(row[truth], row["named_second"])
            for truth in ("truth_first", "truth_second")
        )
    ]
    strongest = [
        row for row in sick if names_cause(row["truth_first"], row["named_first"])
    ]
    lines = [row for row in sick if row["is_line_right"]]
    lines_right = [row for row in lines if row["is_line_right"] == "yes"]
    demoted = [row for row in healthy if row["drawn"] and "mended" not in row["drawn"]]
    seconds = sorted(float(row["doctor_s"]) for row in judged) or [0.0]
    noise = sorted(float(row["gain_noise"]) for row in judged) or [0.0]
    return "\n".join(
        [
            f"- cases: {len(rows)}, of which {len(rows) - len(judged)} failed",
            f"- first name is a true cause: {share(sum(map(is_right, sick)), len(sick))};"
            f" the strongest: {share(len(strongest), len(sick))}",
            f"- the same, where a first worker that gains 15 % counts too:"
            f" {share(sum(map(names_remedy, sick)), len(sick))}",
            f"- healthy, called healthy: {share(sum(map(is_right, healthy)), len(healthy))};"
            f" of those that no loader speeds up by 15 % and noise leaves certain:"
            f" {share(sum(map(is_right, settled_healthy)), len(settled_healthy))}",
            f"- right of all cases whose truth is beyond noise:"
            f" {share(sum(map(is_right, settled)), len(settled))}",
            f"- causes put in that gain less than 15 %, counted as healthy: {len(demoted)}",
            f"- two causes, both named first and second: {share(len(both), len(double))}",
            f"- line right, where the cause is: {share(len(lines_right), len(lines))}",
            f"- doctor takes {median(seconds):.1f} s (median), {seconds[-1]:.1f} s at most",
            f"- noise of a measured gain: {median(noise):.1%} (median), {noise[-1]:.1%} at most",
        ]
    )


def confusion(judged: list[CsvRow]) -> str:
    """Return truth by first name; a name that is an alias counts under the truth's own."""
    counts = Counter((row["truth_first"], canonical(row)) for row in judged)
    truths = sorted(
        {truth for truth, _ in counts}, key=lambda name: (name == HEALTHY, name)
    )
    names = sorted(
        {name for _, name in counts}, key=lambda name: (name == HEALTHY, name)
    )
    lines = [
        "| truth \\ named | " + " | ".join(names) + " |",
        "|---|" + "--:|" * len(names),
    ]
    for truth in truths:
        cells = [str(counts[truth, name] or "") for name in names]
        lines.append(f"| {truth} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def canonical(row: CsvRow) -> str:
    """Return the first name, as the truth calls it if both mean one thing."""
    for truth in (row["truth_first"], row["truth_second"]):
        if truth and names_cause(truth, row["named_first"]):
            return truth
    return row["named_first"]


def calibration(judged: list[CsvRow]) -> str:
    """Return how often names of a confidence are right, by bins of confidence."""
    lines = ["| confidence | cases | mean confidence | right |", "|---|--:|--:|--:|"]
    for low, high in pairwise(BINS):
        rows = [
            row
            for row in judged
            if low <= float(row["confidence"]) < high
            or (high == 1.0 == float(row["confidence"]))
        ]
        if rows:
            mean = sum(float(row["confidence"]) for row in rows) / len(rows)
            right = sum(map(is_right, rows)) / len(rows)
            lines.append(
                f"| {low:.2f} to {high:.2f} | {len(rows)} | {mean:.2f} | {right:.0%} |"
            )
    return "\n".join(lines)


def rightly_named(judged: list[CsvRow]) -> list[CsvRow]:
    """Return the cases whose strongest cause is named first."""
    return [
        row
        for row in judged
        if row["truth_first"] != HEALTHY
        and names_cause(row["truth_first"], row["named_first"])
    ]


def gain_rows(judged: list[CsvRow]) -> str:
    """Return predicted and measured gains of `rightly_named` cases, a row for each."""
    lines = [
        "| case | cause | predicted | interval | measured | noise |",
        "|---|---|--:|---|--:|--:|",
    ]
    for row in rightly_named(judged):
        percent = {
            name: f"{round(float(row[name]), 2) + 0.0:.0%}"
            for name in row
            if name.startswith("predicted") or name in {"measured_gain", "gain_noise"}
        }
        lines.append(
            f"| {row['seed']}:{row['number']} | {row['truth_first']} |"
            f" {percent['predicted_gain']} | {percent['predicted_low']} to"
            f" {percent['predicted_high']} | {percent['measured_gain']} |"
            f" {percent['gain_noise']} |"
        )
    return "\n".join(lines)


def gains(judged: list[CsvRow]) -> str:
    """Return how often predicted gains hold, of cases whose strongest cause is named first."""
    rows = rightly_named(judged)
    near, inside, either = [], [], []
    for row in rows:
        predicted, measured = float(row["predicted_gain"]), float(row["measured_gain"])
        near.append(abs(predicted - measured) <= POINTS)
        inside.append(
            float(row["predicted_low"]) <= measured <= float(row["predicted_high"])
        )
        either.append(near[-1] or inside[-1])
    return (
        f"- gains within 15 points: {share(sum(near), len(rows))}; inside the interval:"
        f" {share(sum(inside), len(rows))}; either: {share(sum(either), len(rows))}"
    )


def wrong_cases(judged: list[CsvRow]) -> str:
    """Return a row for each case whose first name is wrong."""
    lines = [
        "| case | put in | truth | named | confidence | gain |",
        "|---|---|---|---|--:|--:|",
    ]
    for row in judged:
        if not is_right(row):
            truth = " + ".join(filter(None, [row["truth_first"], row["truth_second"]]))
            gain = (
                row["measured_gain"]
                if row["truth_first"] != HEALTHY
                else row["replay_gain"]
            )
            lines.append(
                f"| {row['seed']}:{row['number']} | {row['drawn']} | {truth} |"
                f" {row['named_first']} | {float(row['confidence']):.2f} | {float(gain):.0%} |"
            )
    return "\n".join(lines)
