"""`python -m tests.fuzz`: many odd inputs for all readers, counted by outcome. Ends with 1 and the
smallest example of each fault if there is one."""

import argparse
import multiprocessing.connection
import os
import sys
from collections import Counter
from collections.abc import Iterator
from time import monotonic
from typing import Any

from tests.fuzz.readers import READERS, Input
from tests.fuzz.trial import FAULT, LIMIT, OUTCOMES, SLOW, Fault, Report
from tests.fuzz.work import work

AT_ONCE = 500
"""Inputs that a process is given at a time."""
HANGS = 30 * LIMIT
"""Seconds after which a process that says nothing is ended: compiled code hears no signal."""


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="Over all readers.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--only",
        action="append",
        choices=tuple(READERS),
        metavar="READER",
        help="A reader; may be given several times.",
    )
    chosen = parser.parse_args()
    readers = {name: READERS[name] for name in chosen.only or READERS}
    every = chosen.inputs / sum(reader.share for reader in readers.values())
    jobs = [
        (name, range(first, min(first + AT_ONCE, count)), chosen.seed)
        for name, reader in readers.items()
        for count in [max(1, round(every * reader.share))]
        for first in range(0, count, AT_ONCE)
    ]
    began = monotonic()
    counts: dict[str, Counter[str]] = {name: Counter() for name in readers}
    smallest: dict[tuple[str, str, str], Fault] = {}
    for name, report in _reports(jobs, chosen.processes):
        counts[name] += report.counts
        for fault in report.faults:
            key = (name, fault.what, fault.where)
            smallest[key] = min(smallest.get(key, fault), fault, key=lambda found: found.size)
    _print(counts, monotonic() - began, chosen.seed)
    for fault in smallest.values():
        _show(fault)
    return 1 if smallest else 0


def _reports(jobs: list[Any], processes: int) -> Iterator[tuple[str, Report]]:
    """What became of each job, as it comes; a process that hangs or dies is replaced."""
    context = multiprocessing.get_context("spawn")
    left, running = list(reversed(jobs)), {}
    while left or running:
        while left and len(running) < processes:
            job = left.pop()
            mine, its = context.Pipe()
            process = context.Process(target=work, args=(job, its), daemon=True)
            process.start()
            its.close()
            running[mine] = (process, job, [job[1].start])
        for pipe in multiprocessing.connection.wait(list(running), timeout=HANGS) or list(running):
            process, (name, numbers, seed), at = running[pipe]
            try:
                found = pipe.recv() if pipe.poll() else None
            except EOFError:
                found = None
            if isinstance(found, int):
                at[0] = found
                continue
            del running[pipe]
            if found is None:  # it hangs, or it died
                process.kill()
                what = Fault(name, at[0], "killed", "the process hung or died", Input())
                found = Report(Counter({SLOW: 1}), [what])
                left.append((name, range(at[0] + 1, numbers.stop), seed))
            process.join()
            yield name, found


def _print(counts: dict[str, Counter[str]], seconds: float, seed: int) -> None:
    print(f"{'reader':<30}{'inputs':>9}" + "".join(f"{outcome:>10}" for outcome in OUTCOMES))
    for name, found in (*counts.items(), ("all", sum(counts.values(), Counter()))):
        numbers = "".join(f"{found[outcome]:>10}" for outcome in OUTCOMES)
        print(f"{name:<30}{found.total():>9}{numbers}")
    print(f"{seconds:.0f} s, seed {seed}")


def _show(fault: Fault) -> None:
    print(f"\n{FAULT}: {fault.reader}, input {fault.number}: {fault.what} at {fault.where}")
    for argument in fault.input.arguments:
        print(f"  argument {argument!r:.300}")
    for name, content in fault.input.files.items():
        print(f"  {name}: {content!r:.600}")


if __name__ == "__main__":
    sys.exit(main())
