"""Judge ``simshuffle doctor`` on one case: what it says, and what mending the script gains."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import mean

from benchmarks.doctor_cases.case import Case

ROOT = Path(__file__).parents[2]
HEALTHY = "healthy"
LEAST_GAIN = 0.15  # of the loop: less is no disease
WARM_STEPS = 12
RUN_SECONDS, LONGEST_RUN_S, MEASURING_S = 1.5, 4.0, 15.0
RECORDED_S, DOCTOR_LIMIT_S = 4, 180
NOISY = 0.08  # two pairs that differ more are followed by two more
ALIASES = {
    "done anew": {"anew", "done anew for every sample", "once a worker", "done again"},
    "epoch start": {
        "start of the epoch",
        "epoch starts",
        "starts",
        "start",
        "sampler",
        "shuffle",
    },
    "sample code": {"sample"},
    "loop dips": {"evaluation", "checkpoint", "validation"},
    "latency": {"latency or bandwidth", "bandwidth or latency"},
    "bandwidth": {"latency or bandwidth", "bandwidth or latency"},
}
PLACE = re.compile(r"(?P<file>[\w-]+\.py):(?P<line>\d+)")


@dataclass
class Row:
    """A row of the table: truth, what doctor said, and what was measured."""

    seed: int
    number: int
    kind: str = ""
    model: str = ""
    shape: str = ""
    workers: int = 0
    drawn: str = ""
    truth_first: str = HEALTHY
    truth_second: str = ""
    share_first: float = 0.0
    share_second: float = 0.0
    worker_gain: float = (
        0.0  # of a first worker, where samples are slow and there is none
    )
    named_first: str = ""
    named_second: str = ""
    confidence: float = 0.0
    evidence: float = (
        1.0  # for the first name, before cases are counted; 1 of a healthy one
    )
    predicted_gain: float = 0.0
    predicted_low: float = 0.0
    predicted_high: float = 0.0
    measured_gain: float = 0.0  # of mending the first true cause alone
    mended_gain: float = 0.0  # of mending all that was put in
    gain_noise: float = 0.0
    replay_gain: float = 0.0
    is_settled: int = 1
    guilty_lines: str = ""
    named_line: str = ""
    is_line_right: str = ""
    doctor_s: float = 0.0
    case_s: float = 0.0
    load: float = 0.0
    step_ms: float = 0.0
    step_factor: float = 1.0  # `HostSpeed` for which the case was drawn
    work_factor: float = 1.0
    error: str = ""


COLUMNS = [column.name for column in fields(Row)]


# --------------------------------------------------------------------------- what mending gains


class ScriptRunner:
    """A process of `measure`, which has loaded what scripts import, and runs one after another."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("measure.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> ScriptRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def answer(self, request: dict[str, object]) -> dict[str, object]:
        """Run a script in a child of the process; return times of its steps or an error."""
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


class Stopwatch:
    """Times scripts of a folder over whole periods of ``period`` steps."""

    def __init__(self, runner: ScriptRunner, folder: Path, period: int) -> None:
        self.runner = runner
        self.folder = folder
        self.period = period
        self.steps = 0

    def step_times(
        self, name: str, steps: int, seconds: float, replay: bool
    ) -> list[float]:
        """Run a script of the folder, and return when each step ended."""
        script = str(self.folder / f"{name}.py")
        request = {
            "script": script,
            "steps": steps,
            "seconds": seconds,
            "replay": replay,
        }
        answer = self.runner.answer(request)
        if answer.get("error"):
            raise RuntimeError(answer["error"].strip().splitlines()[-1])
        return answer["times"]

    def seconds_per_step(self, name: str, *, replay: bool = False) -> float:
        """Return s a step over whole periods; the first run settles how many."""
        limit_s = LONGEST_RUN_S
        if not self.steps:
            fewest = WARM_STEPS + self.period
            times = self.step_times(name, fewest, limit_s, replay)
            if len(times) > WARM_STEPS + 1:
                step_s = (times[-1] - times[WARM_STEPS]) / (len(times) - WARM_STEPS - 1)
                periods = max(1, round(RUN_SECONDS / (step_s * self.period)))
                self.steps = WARM_STEPS + 1 + periods * self.period
            else:
                self.steps = max(5, len(times))
        times = self.step_times(name, self.steps, limit_s, replay)
        if len(times) < 4:
            raise RuntimeError(f"{name}.py does {len(times)} steps in {limit_s} s")
        first = min(WARM_STEPS, len(times) // 3)
        return (times[-1] - times[first]) / (len(times) - first - 1)


@dataclass(frozen=True)
class Gains:
    """Gains of scripts over the sick one, shares of its time, and their noise."""

    gains: dict[str, float]
    noise: float
    step_s: float


def measure_gains(watch: Stopwatch, names: dict[str, bool]) -> Gains:
    """Time the sick script and others alternating, twice, or four times if noisy and quick.

    Args:
        watch: times scripts.
        names: scripts beside ``train``; the value says whether its batches are played again.

    """
    rounds: list[dict[str, float]] = []
    begin = time.perf_counter()
    for turn in range(4):
        order = ["train", *names] if turn % 2 == 0 else [*reversed(names), "train"]
        rounds.append(
            {
                name: watch.seconds_per_step(
                    "train" if names.get(name) else name, replay=names.get(name, False)
                )
                for name in order
            }
        )
        is_late = time.perf_counter() - begin > MEASURING_S
        if turn % 2 and (is_late or noise_of(rounds, names) < NOISY):
            break
    base_s = mean(seconds["train"] for seconds in rounds)
    gains = {
        name: 1 - mean(seconds[name] for seconds in rounds) / base_s for name in names
    }
    return Gains(gains, noise_of(rounds, names), base_s)


def noise_of(rounds: list[dict[str, float]], names: dict[str, bool]) -> float:
    """Return half of the widest range of a gain between rounds."""
    ranges = [
        [1 - seconds[name] / seconds["train"] for seconds in rounds] for name in names
    ]
    return max(max(gains) - min(gains) for gains in ranges) / 2


# --------------------------------------------------------------------------- what doctor says


def run_doctor(folder: Path) -> tuple[dict[str, object], float]:
    """Run doctor on the sick script as a user would; return its JSON and the seconds taken."""
    command = [
        sys.executable,
        "-m",
        "simshuffle",
        "doctor",
        "--seconds",
        str(RECORDED_S),
        "--json",
    ]
    command += ["--out", "doctor", "--", sys.executable, "train.py"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
        ),
    }
    begin = time.perf_counter()
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=DOCTOR_LIMIT_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise RuntimeError(
            f"doctor exits with {process.returncode}: {stderr.strip()[-200:]}"
        )
    return json.loads(stdout)["diagnosis"], time.perf_counter() - begin


def number_of(confidence: object) -> float:
    """Return a confidence as a share; words such as "sure (19 of 20 such cases)" are read."""
    if isinstance(confidence, str):
        match = re.search(r"(\d+) of (\d+)", confidence)
        return int(match[1]) / int(match[2]) if match else 0.0
    return float(confidence or 0.0)


def read_diagnosis(row: Row, diagnosis: dict[str, object]) -> None:
    """Write what a diagnosis says into a row; a first cause below 15 % counts as healthy."""
    causes = list(diagnosis["causes"])
    verdict = str(diagnosis.get("verdict", "")).lower()
    first = causes[0] if causes else {}
    if (
        not causes
        or "healthy" in verdict
        or float(first.get("share") or 0) < LEAST_GAIN
    ):
        row.named_first = HEALTHY
        row.named_second = causes[0]["name"] if causes else ""
        row.confidence = number_of(
            diagnosis.get("confidence", first.get("confidence", math.nan))
        )
        return
    row.named_first = first["name"]
    row.named_second = causes[1]["name"] if len(causes) > 1 else ""
    row.confidence = number_of(first["confidence"])
    row.evidence = float(first["evidence"])
    remedies = [
        remedy
        for remedy in diagnosis["remedies"]
        if remedy.get("cause") == first["name"]
    ]
    remedy = remedies[0] if remedies else None
    row.predicted_gain = float(first["share"])
    row.predicted_low = row.predicted_high = row.predicted_gain
    if remedy and remedy["share"]:
        batch_s = remedy["gain_s"] / remedy["share"]
        row.predicted_gain = float(remedy["share"])
        row.predicted_low = remedy["low"] / batch_s
        row.predicted_high = remedy["high"] / batch_s
    place = PLACE.search(
        f"{first.get('file', '')}:{first.get('line', '')} {first['sentence']}"
    )
    row.named_line = place[0] if place else ""


def names_cause(truth: str, name: str) -> bool:
    """Return whether a name that doctor gives stands for a cause."""
    return name == truth or name in ALIASES.get(truth, ())


# --------------------------------------------------------------------------- a case


@contextmanager
def running_store(folder: Path):
    """Run the store of a case, if it has one, while its scripts run."""
    if not (folder / "store.py").exists():
        yield
        return
    store = subprocess.Popen([sys.executable, "store.py"], cwd=folder)
    try:
        deadline = time.monotonic() + 30
        while not (folder / "port").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield
    finally:
        store.terminate()
        store.wait()


MEASURED = (
    "truth_first",
    "truth_second",
    "share_first",
    "share_second",
    "worker_gain",
    "measured_gain",
    "mended_gain",
    "gain_noise",
    "replay_gain",
    "is_settled",
    "step_ms",
)


def judge_case(
    case: Case, runner: ScriptRunner, truth: dict[str, str] | None = None
) -> Row:
    """Record a case with doctor, measure its mended scripts, and return the row.

    Args:
        case: its scripts and the causes that were put in.
        runner: runs the scripts that are measured.
        truth: a row whose measured columns are taken in place of measuring.

    """
    begin = time.perf_counter()
    setting = case.setting
    row = Row(
        case.seed,
        case.number,
        setting.kind,
        setting.model,
        setting.shape,
        setting.workers,
        step_factor=setting.step_factor,
        work_factor=setting.work_factor,
    )
    row.drawn = (
        " + ".join(cause.key for cause in case.causes) + " mended" * case.is_decoy
    )
    with tempfile.TemporaryDirectory(prefix="doctor-case-") as name:
        folder = Path(name)
        case.write(folder)
        subprocess.run(
            [sys.executable, "prepare.py"], cwd=folder, check=True, timeout=60
        )
        with running_store(folder):
            try:
                if truth:
                    for column in MEASURED:
                        kind = type(getattr(row, column))
                        setattr(row, column, kind(truth[column]))
                else:
                    watch = Stopwatch(runner, folder, setting.steps_of_epoch)
                    measure_truth(row, case, watch)
                diagnosis, row.doctor_s = run_doctor(folder)
                read_diagnosis(row, diagnosis)
            except (
                RuntimeError,
                ValueError,
                KeyError,
                subprocess.TimeoutExpired,
            ) as error:
                row.error = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
    settle(row, case)
    row.load = round(os.getloadavg()[0], 2)
    row.case_s = time.perf_counter() - begin
    for column, value in asdict(row).items():
        if isinstance(value, float):
            setattr(row, column, round(value, 4))
    return row


def measure_truth(row: Row, case: Case, watch: Stopwatch) -> None:
    """Measure what mending gains, and what is left of the causes that were put in."""
    names = dict.fromkeys(case.mended_scripts(), False) or {"replay": True}
    measured = measure_gains(watch, names)
    gains = dict(measured.gains)
    shares = shares_of(case, gains)
    if "replay" not in gains and max(shares.values()) < LEAST_GAIN:
        gains |= measure_gains(watch, {"replay": True}).gains
    row.step_ms, row.gain_noise = measured.step_s * 1e3, measured.noise
    row.replay_gain = gains.get("replay", 0.0)
    row.worker_gain = gains.get("one_worker", 0.0)
    row.mended_gain = gains.get("mended", 0.0)
    margin = min((abs(share - LEAST_GAIN) for share in shares.values()), default=1.0)
    row.is_settled = int(row.replay_gain < LEAST_GAIN and row.gain_noise < margin)
    ordered = sorted(shares, key=lambda cause: -shares[cause])
    true_causes = [cause for cause in ordered if shares[cause] >= LEAST_GAIN]
    if true_causes:
        row.truth_first, row.share_first = true_causes[0], shares[true_causes[0]]
    if len(true_causes) > 1:
        row.truth_second, row.share_second = true_causes[1], shares[true_causes[1]]
    row.measured_gain = gains_by_cause(case, gains).get(row.truth_first, 0.0)


def gains_by_cause(case: Case, gains: dict[str, float]) -> dict[str, float]:
    """Return what mending each cause alone gains, by its name."""
    single = [cause.name for cause in case.diseases]
    if len(single) == 2:
        return {single[0]: gains["mended_first"], single[1]: gains["mended_second"]}
    return {single[0]: gains["mended"]} if single else {}


def shares_of(case: Case, gains: dict[str, float]) -> dict[str, float]:
    """Return the share of the loop that each cause has: of two, its mean gain alone and last."""
    single_gains = gains_by_cause(case, gains)
    if len(single_gains) < 2:
        return single_gains
    first, second = single_gains
    return {
        first: (single_gains[first] + gains["mended"] - single_gains[second]) / 2,
        second: (single_gains[second] + gains["mended"] - single_gains[first]) / 2,
    }


def settle(row: Row, case: Case) -> None:
    """Say whether the named line is one that was made guilty."""
    guilty = case.sick.guilty.get(row.truth_first, ())
    row.guilty_lines = " ".join(map(str, guilty))
    if row.truth_first != HEALTHY and names_cause(row.truth_first, row.named_first):
        file, _, line = row.named_line.partition(":")
        row.is_line_right = (
            "yes" if file == "train.py" and int(line) in guilty else "no"
        )
