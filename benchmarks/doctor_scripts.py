"""Does `simshuffle doctor` find what makes a training wait, and how much a remedy gains?

    python benchmarks/doctor_scripts.py [--only NAME ...] [--steps N] [--pairs N]

`doctor_scripts/causes.csv` names small trainings with one cause each, and healthy ones. Each is
examined once; then it runs alternately as it is and with the remedy that its script knows, and says
itself what a batch takes. Writes docs/data/doctor-scripts.csv and docs/reference/doctor.md if all
of them ran; a quarter of an hour on two quiet cores. What a machine lacks a device for is skipped,
which is said.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import slow_disk
from slow_server import slow_server

HERE = Path(__file__).parent
SCRIPTS = HERE / "doctor_scripts"
DATA = Path(gettempdir(), "simshuffle-doctor-data")
"""Where the data of the scripts are made, and kept."""
TABLE = HERE.parent / "docs" / "data" / "doctor-scripts.csv"
PAGE = HERE.parent / "docs" / "reference" / "doctor.md"
PATIENCE = 120.0
"""s that a script may take."""

sys.path.append(str(SCRIPTS))
from data import made  # noqa: E402 - it lies beside the scripts


@dataclass(frozen=True)
class Script:
    """A line of causes.csv."""

    script: str  # its name
    cause: str  # put in, as doctor names it; '' for none
    remedy: str  # what the script does about it
    change: str  # the same as an argument of its DataLoader, '' if it is none
    data: str  # kind, '' for none
    device: str  # that the data lie on: '', 'disk OPTIONS' or 'http OPTIONS'
    ranks: int

    def lacks(self) -> str:
        """What this machine lacks for it, '' if nothing."""
        return slow_disk.missing() if self.device.startswith("disk") else ""

    @contextmanager
    def placed(self) -> Iterator[str]:
        """Where its data are, until the block ends."""
        folder = made(self.data, DATA) if self.data else DATA
        kind, *options = self.device.split() or [""]
        if kind == "disk":
            with (
                TemporaryDirectory() as place,
                slow_disk.slow_disk(folder, Path(place, "disk"), *options) as mount,
            ):
                yield str(mount)
        elif kind == "http":
            with slow_server(folder, *options) as address:
                yield address
        else:
            yield str(folder)

    def command(self, data: str, steps: int, remedy: bool) -> list[str]:
        """What runs it."""
        ranks = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={self.ranks}",
        ]
        start = [sys.executable, *(ranks if self.ranks > 1 else [])]
        options = [
            "--data",
            data,
            "--steps",
            str(steps),
            *(["--remedy"] if remedy else []),
        ]
        return [*start, str(SCRIPTS / f"{self.script}.py"), *options]

    def seconds(self, data: str, steps: int, remedy: bool) -> float:
        """s that a batch takes, as the script says."""
        return seconds_of(run(self.command(data, steps, remedy)).stdout)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """A command that must do what it should."""
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    if ran.returncode:
        raise RuntimeError(f"{' '.join(command)}: {ran.stdout}{ran.stderr}")
    return ran


def seconds_of(said: str) -> float:
    """s a batch, of what a script said."""
    found = re.search(r"([\d.]+) s a batch", said)
    if found is None:
        raise RuntimeError(f"no time of a batch: {said}")
    return float(found[1])


@dataclass(frozen=True)
class Outcome:
    """What became of a script; shares are of the time of a batch."""

    script: str
    cause: str  # put in
    found: str  # cause that doctor names first; '' for none
    confidence: float | None
    predicted: float | None  # gain of the remedy
    measured: float | None
    off: float | None  # predicted - measured
    batch_s: float | None  # as it is, unrecorded; median of the pairs
    remedied_s: float | None
    recorded_s: float  # as it is, under the recorder

    def line(self) -> str:
        """Of the table that is printed."""
        percents = (self.confidence, self.predicted, self.measured, self.off)
        told = "".join(" " * 11 if of is None else f"{of:11.1%}" for of in percents)
        right = "  " if self.found == self.cause else "* "
        return f"{right}{self.script:22}{self.cause:16}{self.found:16}{told}"


HEADS = (
    "  script",
    "put in",
    "found first",
    "confidence",
    "predicted",
    "measured",
    "off by",
)
HEAD = f"{HEADS[0]:24}{HEADS[1]:16}{HEADS[2]:16}" + "".join(
    f"{head:>11}" for head in HEADS[3:]
)


def examined(script: Script, data: str, steps: int) -> tuple[dict[str, Any], float]:
    """What doctor says of a script, and s that a batch takes meanwhile, as the script says."""
    with TemporaryDirectory() as place:
        doctor = [
            "-m",
            "simshuffle",
            "doctor",
            "--json",
            "--out",
            f"{place}/result",
            "--",
        ]
        command = [sys.executable, *doctor, *script.command(data, steps, remedy=False)]
        ran = run(command)
        return json.loads(ran.stdout)["diagnosis"], seconds_of(ran.stderr)


def predicted(script: Script, diagnosis: dict[str, Any]) -> float | None:
    """Share of a batch that the remedy saves: as doctor says of the same argument of the loader, be
    its value another one, else of what it names against the cause; None if it names nothing."""
    name = script.change.partition("=")[0]
    for remedy in diagnosis["remedies"]:
        same = name in (remedy["change"] or {}).get("loader", ())
        if same if name else remedy["cause"] == script.cause:
            return float(remedy["share"])
    return None


def outcome(script: Script, steps: int, pairs: int) -> Outcome:
    """Examine a script, then measure it with its remedy and without."""
    with script.placed() as data:
        diagnosis, recorded = examined(script, data, steps)
        found = (
            diagnosis["causes"][0]
            if diagnosis["causes"]
            else {"name": "", "confidence": None}
        )
        names = (script.script, script.cause, found["name"], found["confidence"])
        if not script.cause:
            return Outcome(*names, None, None, None, None, None, recorded)
        both = [
            [script.seconds(data, steps, remedy) for remedy in (False, True)]
            for _ in range(pairs)
        ]
    plain, remedied = map(statistics.median, zip(*both, strict=True))
    gain = statistics.median(1 - after / before for before, after in both)
    share = predicted(script, diagnosis)
    off = None if share is None else share - gain
    return Outcome(*names, share, gain, off, plain, remedied, recorded)


def page(
    found: Sequence[Outcome], remedies: Mapping[str, str], steps: int, pairs: int
) -> str:
    """The table for people; ``remedies`` by script."""

    def percent(share: float | None) -> str:
        return "" if share is None else f"{100 * share:.0f} %"

    right = sum(of.found == of.cause for of in found)
    lines = [
        "# Trainings that wait, each for one thing",
        "",
        "Written by `python benchmarks/doctor_scripts.py`. What it is: [my training waits for"
        " data](../doctor.md#how-well-it-does-it).",
        "",
        f"Two cores, {steps} batches a run, {pairs} pairs of runs without the remedy and with it;"
        f" the first quarter does not count. {right} of {len(found)} are named rightly. Gains are"
        " shares of the time of a batch.",
        "",
        "| script | put in | named first | confidence | remedy | a batch | predicted | measured |",
        "|---|---|---|--:|---|--:|--:|--:|",
    ]
    for of in found:
        seconds = of.recorded_s if of.batch_s is None else of.batch_s
        words = (
            of.script,
            of.cause or "nothing",
            of.found or "nothing",
            percent(of.confidence),
        )
        numbers = (
            f"{1e3 * seconds:.3g} ms",
            percent(of.predicted),
            percent(of.measured),
        )
        lines.append(f"| {' | '.join((*words, remedies[of.script], *numbers))} |")
    return "\n".join(lines) + "\n"


def scripts() -> list[Script]:
    """All of them."""
    with (SCRIPTS / "causes.csv").open(encoding="utf-8", newline="") as file:
        return [
            Script(**{**row, "ranks": int(row["ranks"])})
            for row in csv.DictReader(file)
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    known = [script.script for script in scripts()]
    parser.add_argument(
        "--only", nargs="+", choices=known, default=known, metavar="NAME"
    )
    parser.add_argument("--steps", type=int, default=240, help="batches of each run")
    parser.add_argument(
        "--pairs", type=int, default=2, help="runs with and without the remedy"
    )
    options = parser.parse_args()
    print(HEAD)
    found = []
    for script in scripts():
        if script.script not in options.only:
            continue
        if why := script.lacks():
            print(f"  {script.script:22}skipped: {why}", flush=True)
            continue
        found.append(outcome(script, options.steps, options.pairs))
        print(found[-1].line(), flush=True)
    right = sum(of.found == of.cause for of in found)
    print(f"{right} of {len(found)} are named rightly; * marks the others.")
    if len(found) == len(known):
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(
                file, [of.name for of in fields(Outcome)], lineterminator="\n"
            )
            writer.writeheader()
            writer.writerows(map(asdict, found))
        remedies = {script.script: script.remedy for script in scripts()}
        PAGE.write_text(
            page(found, remedies, options.steps, options.pairs), encoding="utf-8"
        )
        print(f"Tables: {TABLE} and {PAGE}")


if __name__ == "__main__":
    main()
