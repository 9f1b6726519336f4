"""Do two versions of the code give the same results? Every verb on both, every file compared.

    python benchmarks/same_results.py OLD NEW [--only VERB] [--keep FOLDER] [--every]

OLD and NEW are checkouts. The same small commands run on both, each in a process of its own that is
forked from one per checkout, which has imported what takes long. Compared are exit status, what is
printed, and every file that is written: tables, JSON and text value by value, figures byte by byte.
One row a verb is printed. The exit status is 1 if anything differs but for what `ALWAYS` and
`DELIBERATE` name.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from compare_files import differences, without_fingerprints
from verb_cases import CASES, COPIED, INPUTS, Case, verb_of

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from tests.preloaded import Preloaded  # noqa: E402

SIDES = ("old", "new")


class Named(NamedTuple):
    """A difference that is no fault. All four but the reason are patterns as of the shell."""

    verb: str
    file: str
    part: str
    """A column, a dotted key, a line of text, "" for a figure, `FILE` for a file of one side."""
    reason: str


FILE = "(file)"
ALWAYS = (
    Named("*", "*meta.json", "fingerprint", "stands for the code as well"),
    Named("*", "*meta.json", "code", "stands for the code"),
    Named("*", "*meta.json", "versions.*", "of what is installed"),
    Named("*", "*meta.json", "made.*", "how it was made"),
    Named("compare", "*", "[ab].fingerprint", "stands for the code as well"),
    Named("compare", "*", "[AB]: fingerprint *", "the same, and when it was made"),
    Named("report", "*.html", "*[AB]: fingerprint *", "the same"),
    Named("report", "*.html", "*How it was made*", "the same"),
    Named("report", "*.html", "<head>*", "digests of the page"),
    Named(
        "*",
        "*.cells/*",
        FILE,
        "cells are called after the code that decides them as well",
    ),
    Named(
        "replay",
        "*.stderr",
        "*solved in * s of processor time*",
        "measured on this machine",
    ),
    Named("train", "*.csv", "seconds", "measured on this machine"),
    Named("train", "*.json", "*seconds", "measured on this machine"),
    Named("train", "*run.json", "*samples_per_s", "measured on this machine"),
    Named("t*", "*meta.json", "runs.*.samples_per_s", "measured on this machine"),
    Named("train", "*.json", "digest", "of what was measured as well"),
    Named(
        "train",
        "*/runs/*.json",
        "files.iterations.parquet",
        "digest of what was measured",
    ),
    Named("train", "*/epochs.parquet", "(bytes)", "names of runs end in fingerprints"),
    Named("train", "*iterations.parquet", "*_s", "measured on this machine"),
    Named("train", "*epochs.parquet", "importance_s", "measured on this machine"),
    Named(
        "train",
        "*",
        "* s in all runs, each with one thread*",
        "measured on this machine",
    ),
    Named("train", "*.stderr", "* of * runs, about * left", "measured on this machine"),
)
DELIBERATE: tuple[Named, ...] = (
    Named("*", "*.png", "", "figures are declared once, for paper and for the page"),
    Named("*", "*.pdf", "", "the same"),
)
"""What a change between OLD and NEW has altered on purpose: a new column, a mended fault."""

SKIPPED = {
    "testbed": "measures this machine, never the same twice; predicted: validate --only testbed",
    **dict.fromkeys(("doctor", "audit", "probe"), "measures this machine"),
}


@dataclass
class Count:
    """Of a verb: files by how they compare, CPU seconds, and what differs."""

    files: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SIDES, 0.0))
    found: list[str] = field(default_factory=list)


def verbs(checkout: Path) -> set[str]:
    """The verbs of the command line of a checkout, those of groups by their own names.

    Raises:
        SystemExit: the interpreter does not take simshuffle from there.
    """
    code = (
        "import json, simshuffle, typer; from simshuffle.cli import app;"
        " all = typer.main.get_command(app).commands.items();"
        " names = [n for name, one in all for n in getattr(one, 'commands', [name])];"
        " print(json.dumps([simshuffle.__file__, *names]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment(checkout),
        cwd=tempfile.gettempdir(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{checkout} has no simshuffle that runs:\n{done.stderr}")
    file, *names = json.loads(done.stdout)
    if not Path(file).is_relative_to(checkout):
        raise SystemExit(f"simshuffle is taken from {file}, not from {checkout}")
    return set(names)


def environment(checkout: Path) -> dict[str, str]:
    """Of a process that takes simshuffle from ``checkout``, beside the variables of this one."""
    return {"PYTHONPATH": str(checkout), "COLUMNS": "120", "OMP_NUM_THREADS": "1"}


def run_case(
    case: Case, process: Preloaded, folder: Path
) -> tuple[dict[str, str], dict[str, float]]:
    """Run the commands in ``folder``: the verb that made each file, by the file's name without
    fingerprints, and the CPU seconds of each verb."""
    folder.mkdir(parents=True)
    for name, text in INPUTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, place in COPIED.items():
        (folder / name).symlink_to(ROOT / place)
    made = dict.fromkeys(files_of(folder), "")
    seconds: Counter[str] = Counter()
    for number, words in enumerate(case.commands, 1):
        done = process.simshuffle(words, folder)
        seconds[verb_of(words)] += done.seconds
        place = folder / f"{number}-{verb_of(words)}"
        place.with_suffix(".stdout").write_bytes(done.stdout)
        place.with_suffix(".stderr").write_bytes(done.stderr)
        place.with_suffix(".status").write_text(str(done.status), encoding="utf-8")
        for name in files_of(folder):
            made.setdefault(name, verb_of(words))
    return {name: verb for name, verb in made.items() if verb}, dict(seconds)


def files_of(folder: Path) -> dict[str, Path]:
    """All files below ``folder`` but the copied ones, by their name without fingerprints."""
    paths = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name != ".lock"
        and path.relative_to(folder).parts[0] not in COPIED
    ]
    files = {
        without_fingerprints(path.relative_to(folder).as_posix()): path
        for path in paths
    }
    assert len(files) == len(paths), (
        "two names differ in nothing but their fingerprints"
    )
    return files


def compare_case(
    case: Case, folder: Path, made: dict[str, dict[str, str]], counts: dict[str, Count]
) -> set[Named]:
    """Add to ``counts`` how the files of a case compare; returns what explained differences."""
    used: set[Named] = set()
    sides = [files_of(folder / side / case.name) for side in SIDES]
    for name, verb in (made["new"] | made["old"]).items():
        count = counts.setdefault(verb, Count())
        paths = [files.get(name) for files in sides]
        if None in paths:
            found = [(FILE, f"only in {SIDES[paths.index(None) - 1]}")]
        else:
            old, new = (
                content(path, folder / side)
                for path, side in zip(paths, SIDES, strict=True)
                if path is not None
            )
            found = differences(old, new, name)
            if name.endswith(".status") and new != b"0":
                found = [
                    (
                        "",
                        f"exit status {new.decode()}; see {folder / 'new' / case.name}",
                    )
                ]
        explained = {part: named(verb, name, part) for part, _ in found}
        used.update(entry for entry in explained.values() if entry is not None)
        left = [(part, how) for part, how in found if explained[part] is None]
        count.files["different" if left else "named" if found else "equal"] += 1
        count.found += [f"{case.name}/{name} {part}: {how}" for part, how in left]
    return used


def content(path: Path, folder: Path) -> bytes:
    """Of a file; in a text the folder that both sides have for themselves is only named."""
    found = path.read_bytes()
    is_binary = path.suffix in {".parquet", ".npz", ".gz", ".png", ".pdf"}
    return found if is_binary else found.replace(str(folder).encode(), b"FOLDER")


def named(verb: str, file: str, part: str) -> Named | None:
    """The entry that explains a difference."""
    for entry in (*ALWAYS, *DELIBERATE):
        if (
            fnmatchcase(verb, entry.verb)
            and fnmatchcase(file, entry.file)
            and fnmatchcase(part, entry.part)
        ):
            return entry
    return None


def compare(
    checkouts: dict[str, Path], cases: Sequence[Case], folder: Path
) -> tuple[dict[str, Count], set[Named]]:
    """Run all cases on both sides and compare them: the counts by verb, and what was explained."""

    def outcomes(side: str) -> list[tuple[dict[str, str], dict[str, float]]]:
        process = Preloaded(environment(checkouts[side]))
        ran = [run_case(case, process, folder / side / case.name) for case in cases]
        process.end()
        return ran

    with ThreadPoolExecutor(len(SIDES)) as pool:
        ran = dict(zip(SIDES, pool.map(outcomes, SIDES), strict=True))
    counts: dict[str, Count] = {}
    used: set[Named] = set()
    for number, case in enumerate(cases):
        for side in SIDES:
            for verb, taken in ran[side][number][1].items():
                counts.setdefault(verb, Count()).seconds[side] += taken
        made = {side: ran[side][number][0] for side in SIDES}
        used |= compare_case(case, folder, made, counts)
    return counts, used


def report(counts: dict[str, Count], used: set[Named], every: bool) -> None:
    """Print a row for each verb, then what explained differences."""
    print(
        "| verb | files | equal | named | different | CPU s old | CPU s new | first difference |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|---|")
    for verb, count in counts.items():
        numbers = [
            count.files.total(),
            *(count.files[k] for k in ("equal", "named", "different")),
        ]
        times = [f"{count.seconds[side]:.0f}" for side in SIDES]
        first = count.found[0] if count.found else ""
        print(
            f"| {verb} | {' | '.join(map(str, numbers))} | {' | '.join(times)} | {first} |"
        )
    for verb, reason in SKIPPED.items():
        print(f"| {verb} | | | | | | | skipped: {reason} |")
    print("\nNamed differences that were met:")
    for entry in sorted(used):
        print(f"- {entry.verb}, {entry.file}, {entry.part}: {entry.reason}")
    for entry in DELIBERATE:
        if entry not in used:
            print(f"Not met: {entry.verb}, {entry.file}, {entry.part}")
    if every:
        print(
            "\n".join(
                ["", *(line for count in counts.values() for line in count.found)]
            )
        )


def main(arguments: Iterable[str] | None = None) -> int:
    """0 if all is the same, 1 if something differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument(
        "--only", action="append", help="a case, or all cases with that verb"
    )
    parser.add_argument("--keep", type=Path, help="a new folder for what both wrote")
    parser.add_argument("--every", action="store_true", help="print every difference")
    given = parser.parse_args(None if arguments is None else list(arguments))
    checkouts = {side: getattr(given, side).resolve() for side in SIDES}
    known = {side: verbs(checkout) for side, checkout in checkouts.items()}
    chosen = [
        case
        for case in CASES
        if not given.only or {case.name, *map(verb_of, case.commands)} & set(given.only)
    ]
    folder = Path(given.keep or tempfile.mkdtemp(prefix="same-results-")).resolve()
    counts, used = compare(checkouts, chosen, folder)
    covered = {verb_of(words) for case in CASES for words in case.commands}
    covered.update(SKIPPED)
    for verb in sorted(known["old"] | known["new"]):
        if verb not in known["new"]:
            counts.setdefault(verb, Count()).found.append("the verb is gone")
        elif verb not in known["old"]:
            print(f"{verb}: a new verb, nothing to compare with")
        elif verb not in covered:
            counts.setdefault(verb, Count()).found.append("no case here runs it")
    report(counts, used, given.every)
    different = any(count.found for count in counts.values())
    if different or given.keep:
        print(f"\nWhat both wrote is in {folder}")
    else:
        shutil.rmtree(folder)
    return int(different)


if __name__ == "__main__":
    sys.exit(main())
