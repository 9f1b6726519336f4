"""All sentences of verdicts as text: ``python -m tests.golden.make_verdicts`` writes
tests/golden/verdicts.txt anew, from tables made by hand and from tiny studies.
"""

import math
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import yaml

from simshuffle.extensions.doctor.blame.replay import blame
from simshuffle.extensions.doctor.blame.runs import UNKNOWN, BlamedEpoch, BlamedRuns
from simshuffle.extensions.doctor.blame.trace import read_trace
from simshuffle.extensions.doctor.blame.waited_for import WaitedForRow
from simshuffle.extensions.planning.text import verdict as judge_plan
from simshuffle.report import side_by_side
from simshuffle.studies.congestion.answer import verdict as judge_congestion
from simshuffle.studies.congestion.verdict import comparisons
from simshuffle.studies.oracle.tables import recommended
from simshuffle.studies.oracle.text import verdict as judge_oracle
from simshuffle.studies.simulation.verdict import verdict as judge_run
from simshuffle.study import engine
from simshuffle.study.executors import SerialExecutor
from simshuffle.study.store import Disk
from simshuffle.study.verdict import Verdict
from tests.studies_tiny import TINY
from tests.units import test_congestion_answer as congestion
from tests.units import test_measured_runs as measured
from tests.units import test_oracle as oracle
from tests.units import test_run_verdict as runs
from tests.units import test_side_by_side as jobs

FILE = Path(__file__).with_name("verdicts.txt")
RANKINGS = yaml.safe_load((Path(__file__).parents[1] / "data" / "verdicts.yaml").read_text("utf-8"))
TRACE = Path(__file__).parents[1] / "data" / "blame" / "slow-rank.csv"
RENEW = "python -m tests.golden.make_verdicts"
STEADY = "Not steady yet: local @64 still fills its page cache; an epoch takes about 2 % less from"
STEADY += " epoch 3 on, and the ranking changes: set epochs: 3."
HANG = {"key": "cluster.parallel_file_system.open_rate", "measured_by": "mdtest", "width": 0.6}


def rank(case):
    """The answer on a case of tests/data/verdicts.yaml."""
    at_rates = [
        (f"{name} @{ranks} open_rate={rate}", ranks, seconds, half)
        for name, ranks, half, seconds_at in case.get("at_rates", ())
        for rate, seconds in zip(runs.RATES.number_of, seconds_at, strict=True)
    ]
    rows = case.get("rows", at_rates)
    inputs = [runs.RATES] if at_rates else []
    return Verdict(runs.answer(*rows, inputs=inputs, samples=case.get("samples")))


def judge_runs():
    """(title, verdict) of runs by hand: a difference, and all that may stand beside it."""
    plain = runs.result(runs.epochs(runs.PFS, runs.LOCAL), runs.PARTS, runs.LINKS)
    yield "reading from a file system that opens too few files", judge_run(plain)
    known = runs.result(runs.epochs(runs.PFS, runs.LOCAL, last=2), runs.PARTS, runs.LINKS)
    fact = {"ranks": 64, "seconds": 5.0, "low": 4.0, "high": 9.0, "centre": 5.5}
    look = "most of it in I/O: look at the open rate"
    rows = [
        measured.row_of("local @16", 1.08),
        measured.row_of("local @32", 2.3, is_expected=False, misfit=look),
        measured.row_of("global-pfs @32", 2.1, is_expected=False, misfit=look),
    ]
    known.meta["not_steady"] = STEADY
    known.meta["hidden"] = {"64": {"fraction": 0.34, "schedule": "streamlined"}}
    known.meta["intervals"] = {
        "runs": {"local @64": fact},
        "hangs": {"local @64": [HANG | {"total": 0.9}]},
        "odds": [{"first": "local @64", "second": "global-pfs @64", "share": 0.71}],
        "measured": rows,
    }
    yield "with intervals, three measured runs, and caches that still fill", judge_run(known)
    lossy = runs.result(runs.epochs(runs.PFS, runs.LOCAL), runs.PARTS, runs.LINKS)
    loss = {"losses": [jobs.LOSS], "completeness": jobs.completeness(1.0, 0.75)}
    lossy.meta["runs"]["local @64"] |= loss
    yield "a run that lost a host", judge_run(lossy)


def judge_patterns():
    """(title, verdict) of patterns under both models, under one, and under two routings."""
    both = {congestion.ALL: [0.59] * 3, congestion.PAIRS: [1.05, 0.83, 1.27]}
    packet = {congestion.ALL: [0.7], congestion.PAIRS: [0.6]}
    times = congestion.times_of({congestion.FLUID: both, congestion.PACKET: packet})
    yield "models that disagree", times
    yield (
        "one seed of one model",
        congestion.times_of({congestion.FLUID: {congestion.ALL: [1.0], congestion.PAIRS: [2.0]}}),
    )
    yield (
        "two routings",
        pd.concat(
            congestion.times_of(
                {congestion.FLUID: {congestion.ALL: [1.0, 1.0], congestion.PAIRS: [pairs, pairs]}},
                routing=routing,
            )
            for routing, pairs in (("d_mod_k", 2.0), ("adaptive", 0.5))
        ),
    )


STRATEGIES = pd.DataFrame(
    [
        *(("local", True, "", 0.0, 400.0, True), ("global-pfs", True, "", math.nan, 700.0, False)),
        ("partial-1", False, "", 1.0, math.nan, False),
    ],
    columns=["strategy", "fits", "why", "exchange_fraction", "cost", "chosen"],
).assign(epochs=90.0, epoch_s=3.0, hours=0.1, io_share=[0, 0.4, 0], exchange_share=0.0)
STRATEGIES = STRATEGIES.assign(storage_cost=0.0, goodput=math.nan, spares=math.nan)
STRATEGIES = STRATEGIES.assign(kept_nbytes=2e12, capacity_nbytes=1e12)


def judge_plans():
    """(title, verdict) of plans: a choice that an input would change, and no choice."""
    turn = {"input": "open rate", "factor": 4.0, "shown": "80 k/s", "after": "global-pfs"}
    question = {"prices": {"host-hour": 1.0}, "learned": False, "target": None, "budget": 900.0}
    for title, turns, table in (
        ("a choice that one input would change", [turn], STRATEGIES),
        ("a choice that no input would change", [], STRATEGIES),
        ("a budget that is too small", [], STRATEGIES.assign(chosen=False, cost=901.0)),
    ):
        tables = {"strategies": table, "turns": pd.DataFrame(turns)}
        meta = {"asked": question, "plan": {"hosts": 2, "not_steady": STEADY}}
        yield title, judge_plan(SimpleNamespace(tables=tables, meta=meta))


def judge_blame():
    """(title, verdict) of blamed runs and of a trace: a slow cable, unknown ranks, a rank."""
    row = WaitedForRow("leaf.0>spine.0", "link", "allreduce", "0.25 of its peers' rate", 2.0, 0.2)
    cable = BlamedEpoch("local @64", 2, 10.0, [row], {})
    healthy = BlamedEpoch("global-pfs @64", 2, 10.0, [], {})
    yield "a slow cable in one of two runs", BlamedRuns("r", [cable, healthy], "").verdict()
    unknown = replace(healthy, ranks_known=False)
    yield "no timeline", BlamedRuns("r", [unknown], UNKNOWN["none"]).verdict()
    yield "a slow rank in a trace", blame(read_trace(TRACE), TRACE.name).verdict()


def judge_memory():
    """The verdict on strategies none of which fits into the memory of a GPU."""
    gib = oracle.GIB
    row = oracle.row(2, "data", 10.0, fits=False, why_not="x", memory_nbytes=6 * gib)
    return judge_oracle(recommended(oracle.made(row)), {**oracle.SAYS, "budget_nbytes": 4.0 * gib})


def compare_epochs():
    """The verdict of a comparison of two results: 22 s of global-pfs are 5 s, by reading."""
    rows = [("global-pfs @64", 2, *row) for row in (("epoch", 22.0, 5.0), ("I/O", 17.5, 0.5))]
    rows += [("local @64", 2, "epoch", 5.0, 5.0)]
    table = pd.DataFrame(rows, columns=["run", "epoch", "label", "a", "b"])
    table = table.assign(difference=100 * (table["b"] / table["a"] - 1))
    answer = [*side_by_side.last_epochs(table)]
    return Verdict(answer, why=side_by_side.explain_change(table))


def judge_by_hand():
    """(title, verdict) of every case made by hand."""
    for case in RANKINGS:
        yield f"run: {case['about']}", rank(case)
    for title, verdict in judge_runs():
        yield f"run: {title}", verdict
    yield "compare: reading gets faster", compare_epochs()
    for title, verdict in judge_plans():
        yield f"plan: {title}", verdict
    for title, times in judge_patterns():
        tables = {"times": times, "sets": times, "comparisons": comparisons(times)}
        yield f"congestion: {title}", judge_congestion(tables)
    for title, verdict in judge_blame():
        yield f"study blame: {title}", verdict
    yield "study oracle: no strategy fits", judge_memory()


def title_of(study, kind):
    """The title of the verdict on a tiny study."""
    return f"{study.verb}: tiny {kind.replace('_', ' ')}"


def judge_tiny():
    """(title, verdict) of every tiny study that has a verdict."""
    for kind, make in TINY.items():
        with tempfile.TemporaryDirectory() as place:
            study, request = make(Path(place) / "inputs")
            if study.verdict is not None:
                result = engine.run(study, request, SerialExecutor(), Disk(Path(place) / "cells"))
                yield title_of(study, kind), result.structured_verdict()


def write_section(title, lines):
    """The lines of a verdict below their title."""
    return "\n".join([f"# {title}", *lines, ""])


def read_sections():
    """The lines of each verdict in the golden file, by title."""
    sections = FILE.read_text("utf-8").removeprefix("# ").split("\n# ")
    parts = (section.strip().split("\n") for section in sections)
    return {title: lines for title, *lines in parts}


def main():
    """Write the golden file."""
    verdicts = [*judge_by_hand(), *judge_tiny()]
    sections = [write_section(title, verdict.lines()) for title, verdict in verdicts]
    FILE.write_text("\n".join(sections), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
