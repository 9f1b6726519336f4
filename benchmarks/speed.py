"""All speeds that matter to users in one table: before and now, what is wanted, and a limit that is
measured in the same run.

    python benchmarks/speed.py [--against CHECKOUT] [--only TEXT] [--long] [--write]

``CHECKOUT`` is a folder with another version; both run with this interpreter and its packages, in
turn. Without it the column "before" is empty. Every figure is of a fresh process: CPU seconds, user
and system, and the largest resident set. Short cases are the least of three. An older version is
stopped after five minutes ("-"). ``--long`` measures it where it is known to take longer.
``--write`` writes docs/reference/speed.md.

The limit of a command is a bare interpreter that imports the same modules and lets as many bare
timeouts pass in SimPy as the command schedules events. Those of the network are explained in
network.py, whose cases these are. SimGrid runs beside them where it is installed
(simgrid_flows.py); where it is not, its figures are those recorded in network.py.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import epoch
import network
import psutil
import simgrid_flows

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "speed.md"
REPEATS = 3  # of what takes no longer than:
SHORT = 6.0  # s
LONGEST = 300  # CPU s that an older version gets
PROCESSES = 2  # of a sweep
SIMSHUFFLE = (sys.executable, "-m", "simshuffle")

# Starts a command and says what it took. A small process does it, for a process that is started has
# been as large as the one that starts it.
LAUNCHER = """
import json, os, resource, sys
longest = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_CPU, (longest, longest + 10))
errors = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
quiet += [(os.POSIX_SPAWN_OPEN, 2, "errors.txt", errors, 0o600)]
pid = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ, file_actions=quiet)
_, status, used = os.wait4(pid, 0)
print(json.dumps([status, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3]))
"""
LAUNCH = (sys.executable, "-I", "-S", "-c", LAUNCHER)
# Does a command, and notes what it imported and how many events it scheduled in SimPy.
PROBE = """
import atexit, json, runpy, sys
import simpy
began, clocks, begun = set(sys.modules), [], simpy.Environment.__init__
def begin_and_keep(self, *args):
    begun(self, *args)
    clocks.append(self._eid)
simpy.Environment.__init__ = begin_and_keep
def note():
    ours = "simshuffle.job.sim" in sys.modules
    names = [n for n in sys.modules if n.split(".")[0] != "simshuffle" and (ours or n not in began)]
    with open("probe.json", "w") as file:
        json.dump([names, sum(next(clock) for clock in clocks)], file)
atexit.register(note)
runpy.run_module("simshuffle", run_name="__main__", alter_sys=True)
"""
# The limit: the same imports, and as many timeouts.
BARE = """
import json
with open("probe.json") as file:
    names, events = json.load(file)
for name in names:
    try:
        __import__(name)
    except Exception:
        pass
if events:
    import simpy
    clock = simpy.Environment()
    def idle(count):
        for _ in range(count):
            yield clock.timeout(1.0)
    for _ in range(1000):
        clock.process(idle(events // 1000))
    clock.run()
"""
EMPTY_KERNEL = """
import numba
numba.njit("int64(int64)")(lambda number: number)
"""


@dataclass(frozen=True)
class Cost:
    """What something took: seconds, and MB at most; None where that is not known."""

    seconds: float | None = None
    megabytes: float | None = None


@dataclass(frozen=True)
class Version:
    """A checkout whose simshuffle runs.

    Attributes:
        folder: where it lies.
        cache: where its compiled kernels lie.
        longest: CPU s that a process gets.
    """

    folder: Path
    cache: Path
    longest: int = 100_000

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "PYTHONSAFEPATH": "1",
            "NUMBA_CACHE_DIR": str(self.cache),
        }


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Attributes:
        name: what is measured.
        wanted: seconds and MB.
        measure: what it takes with a version.
        limit: what it takes at least; asked after ``measure``.
        repeats: the least of so many counts.
        too_long: whether an older version is known to take longer than `LONGEST`.
        beside: what others need, as recorded.
    """

    name: str
    wanted: Cost
    measure: Callable[[Version], Cost]
    limit: Callable[[Version], Cost]
    repeats: int = REPEATS
    too_long: bool = False
    beside: str = ""


# ---------------------------------------------------------------------------------------- measuring


def cost_of(version: Version, command: Sequence[str], folder: Path) -> Cost:
    """CPU s and MB of a Python command in a folder; nothing where it was stopped."""
    done = subprocess.run(
        [*LAUNCH, str(version.longest), sys.executable, *command],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=version.environment,
    )
    status, seconds, megabytes = json.loads(done.stdout)
    stopped = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
    if status and not stopped:
        said = (folder / "errors.txt").read_text(encoding="utf-8")
        raise SystemExit(f"{version.folder}: {' '.join(command)} failed: {said}")
    return Cost() if stopped else Cost(seconds, megabytes)


def command_cost(command: Sequence[str], version: Version) -> Cost:
    """A command of simshuffle in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        write_scenarios(Path(folder), command)
        return cost_of(version, ["-m", "simshuffle", *command], Path(folder))


def write_scenarios(folder: Path, command: Sequence[str]) -> None:
    """What a command reads: the scenario at 16,384 ranks, every iteration, for versions that do not
    have it; or that of a newcomer."""
    if "large.yaml" in command:
        name = "imagenet21k-16384.yaml"
        text = (ROOT / "scenarios" / "large" / name).read_text(encoding="utf-8")
        machine = ROOT / "topologies" / "a100-16384.yaml"
        text = text.replace("time_tolerance: 1 %\n", "")
        text = text.replace("cluster: a100-16384\n", f"cluster: {machine}\n")
        (folder / "large.yaml").write_text(text, encoding="utf-8")
    if "mine.yaml" in command:
        now = Version(ROOT, folder).environment
        quiet = subprocess.DEVNULL
        subprocess.run(
            [*SIMSHUFFLE, *NEWCOMER], cwd=folder, check=True, env=now, stdout=quiet
        )


def bare_cost(command: Sequence[str], version: Version, processes: int = 1) -> Cost:
    """The limit of a command: same imports, as many timeouts, on so many cores."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_scenarios(folder, command)
        here = ["--processes", "1"] if command[0] == "run" else []
        cost_of(version, ["-c", PROBE, *command, *here], folder)
        costs = [cost_of(version, ["-c", BARE], folder) for _ in range(REPEATS)]
    found = least(costs)
    return replace(found, seconds=found.seconds and found.seconds / processes)


def least(costs: Sequence[Cost]) -> Cost:
    """The one with the least seconds; nothing if one of them was stopped."""
    if any(cost.seconds is None for cost in costs):
        return Cost()
    return min(costs, key=lambda cost: cost.seconds or 0.0)


def first_run(version: Version) -> Cost:
    """What compiling adds to a run."""
    with tempfile.TemporaryDirectory() as cache:
        fresh = replace(version, cache=Path(cache))
        first = command_cost(["run", "quickstart"], fresh)
        second = command_cost(["run", "quickstart"], fresh)
    return Cost(first.seconds - second.seconds, first.megabytes)


def empty_kernel(version: Version) -> Cost:
    """Compiling a function that does nothing, numba's imports included."""
    return cost_of(version, ["-c", EMPTY_KERNEL], version.cache)


def epoch_cost(exchange: str, ranks: int, version: Version) -> Cost:
    """Simulating one epoch, without start and output."""
    run = epoch.measure(exchange, version.environment, world_size=ranks)
    return Cost(run["epoch_s"], run["peak_MB"])


@dataclass
class Measured:
    """Cases of other benchmarks, whose limits come with what they took.

    Attributes:
        found: by case, what the other benchmark said last.
    """

    found: dict[str, dict[str, float]]

    def network(self, name: str, version: Version) -> Cost:
        child = subprocess.run(
            [sys.executable, "-c", NETWORK, str(Path(network.__file__).parent), name],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=version.environment,
        )
        run = self.found[name] = json.loads(child.stdout)
        return Cost(run["cpu_s"], run["peak_MB"])

    def network_limit(self, name: str, version: Version) -> Cost:
        return Cost(self.found[name]["limit_s"], self.found[name]["before_MB"])


NETWORK = """
import sys
sys.path.append(sys.argv[1])
import json, network
print(json.dumps(network.measure(sys.argv[2])))
"""


def sweep_cost(command: Sequence[str], version: Version) -> Cost:
    """Wall seconds of a sweep, and the MB of all its processes together, shared pages once."""
    asked = [*command, *TOLERANT]
    with tempfile.TemporaryDirectory() as name:
        write_scenarios(Path(name), asked)
        began = time.perf_counter()
        most = 0.0
        process = psutil.Popen(
            [*SIMSHUFFLE, *asked, "--processes", str(PROCESSES)],
            cwd=name,
            env=version.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None:
            now = 0.0
            with suppress(psutil.Error):
                for each in [process, *process.children(recursive=True)]:
                    with suppress(psutil.Error):
                        now += each.memory_full_info().pss / 1e6
            most = max(most, now)
            time.sleep(0.1)
        took = time.perf_counter() - began
    if process.returncode:
        raise SystemExit(f"{version.folder}: {' '.join(asked)} failed")
    return Cost(took, most)


# ------------------------------------------------------------------------------------------- cases

MEASURED = Measured({})
GROWTH = "network: growth,"
GROWTH_POWER = f"{GROWTH} ranks to the power of"
TOLERANT = ("--set", "time_tolerance=0.01")
ONE_K = ["run", "abci-imagenet1k", "--set", "world_size=1024"]
ONE_K += ["--set", "workload.dataset=imagenet21k", *TOLERANT]
NEWCOMER = ["new", "mine", "--hosts", "64", "--gpus", "4", "--samples", "10000000"]
NEWCOMER += ["--sample-size", "110 kB", "--batch-size", "64", "--batch-time", "180 ms"]
NEWCOMER += ["--gradients", "102 MB", "--ranks", "64,128,256"]
NEWCOMER += ["--ways", "global-pfs,global-ssd,local,partial-0.1", "--quiet"]
WANTED = {"growth, 131072 ranks": 40.0, "exponential, 512 hosts": 20.0}


def command(name: str, words: Sequence[str], wanted: Cost, **how: bool) -> Case:
    """A case that is one command."""
    repeats = REPEATS if (wanted.seconds or 99.0) < SHORT else 1
    return Case(
        name,
        wanted,
        partial(command_cost, words),
        partial(bare_cost, words),
        repeats,
        **how,
    )


def epochs(count: int) -> Case:
    words = ["run", "abci-imagenet1k", "--set", f"epochs={count}"]
    wanted = Cost(4.0, 350.0) if count == 1 else Cost(None, 350.0)
    name = f"2,048 ranks, whole command, {count} epoch{'s' * (count > 1)}"
    return command(name, words, wanted)


def simulation(name: str, exchange: str, ranks: int, wanted: Cost) -> Case:
    """A case that is the simulation of one epoch, without start and output."""
    measure = partial(epoch_cost, exchange, ranks)
    name = f"{ranks:,} ranks, {name}, one epoch: simulation alone"
    return Case(name, wanted, measure, limit=lambda _: Cost())


def network_case(name: str) -> Case:
    work = network.WORKS[name]
    measure = partial(MEASURED.network, name)
    limit = partial(MEASURED.network_limit, name)
    repeats = 1 if work.long else REPEATS
    wanted = Cost(WANTED.get(name))
    recorded = f"recorded: {work.peer}" if work.peer else ""
    return Case(f"network: {name}", wanted, measure, limit, repeats, beside=recorded)


CASES = [
    command("`simshuffle --version`", ["--version"], Cost(0.2)),
    command("`simshuffle list`", ["list"], Cost(0.2)),
    command("`simshuffle --help`", ["--help"], Cost(0.2)),
    command("`simshuffle check quickstart`", ["check", "quickstart"], Cost(0.6)),
    command("`simshuffle run quickstart`", ["run", "quickstart"], Cost(1.5)),
    Case("the same, first run: compiling alone", Cost(8.0), first_run, empty_kernel, 1),
    command(
        "the four runs of `make demo`, with intervals",
        ["run", "paper/strategies", "--interval"],
        Cost(9.0),
    ),
    simulation("a tenth exchanged", epoch.PARTIAL, 64, Cost()),
    simulation("a tenth exchanged", epoch.PARTIAL, 2048, Cost(2.0, 250.0)),
    simulation("a strategy of a user", epoch.REGISTERED, 2048, Cost(2.0, 250.0)),
    *(epochs(count) for count in (1, 2, 10)),
    command(
        "16,384 ranks, every iteration",
        ["run", "large.yaml", "--set", "time_tolerance=0"],
        Cost(40.0, 3000.0),
    ),
    command(
        "16,384 ranks, tolerance 1 %", ["run", "large.yaml", *TOLERANT], Cost(10.0)
    ),
    command("ImageNet-21K, 1,024 ranks, two epochs, tolerance 1 %", ONE_K, Cost(5.0)),
    command(
        "the same with ten times the samples",
        [*ONE_K, "--set", "workload.dataset.num_samples=93000000"],
        Cost(5.0),
        too_long=True,
    ),
    Case(
        f"a newcomer's sweep of 12 runs, tolerance 1 %, {PROCESSES} processes: wall s, MB of all",
        Cost(15.0, 600.0),
        partial(sweep_cost, ["run", "mine.yaml"]),
        partial(bare_cost, ["run", "mine.yaml", *TOLERANT], processes=PROCESSES),
        1,
        too_long=True,
    ),
    *map(network_case, network.WORKS),
]


# ------------------------------------------------------------------------------------------- table

HEAD = (
    "| case | before s | now s | wanted s | limit s | times | before MB | now MB | wanted MB"
    " | limit MB | others |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|"
)


def shown(number: float | None, digits: int = 3) -> str:
    """With so many digits that count, never as a power of ten."""
    if number is None:
        return "-"
    return f"{float(f'{number:.{digits}g}'):,.10g}"


def row(
    name: str, before: Cost, now: Cost, limit: Cost, wanted: Cost, beside: str = ""
) -> str:
    """A line of the table."""
    times = now.seconds / limit.seconds if now.seconds and limit.seconds else None
    seconds = [shown(cost.seconds) for cost in (before, now, wanted, limit)]
    megabytes = [shown(cost.megabytes) for cost in (before, now, wanted, limit)]
    return f"| {' | '.join([name, *seconds, shown(times, 2), *megabytes, beside or '-'])} |"


def power(seconds: dict[int, float]) -> float | None:
    """How time grows from the fewest ranks to the most: as their number to the power of this; the
    number of flows grows in proportion."""
    few = min(seconds, default=0)
    many = max(seconds, default=0)
    if few == many:
        return None
    return math.log(seconds[many] / seconds[few]) / math.log(many / few)


def measured(
    case: Case, version: Version | None, now: Version, long: bool
) -> list[Cost]:
    """Before and now, in turn, and the limit."""
    runs: list[list[Cost]] = [[], []]
    for _ in range(case.repeats):
        if version is not None and (long or not case.too_long):
            runs[0].append(case.measure(version))
        runs[1].append(case.measure(now))
    return [least(runs[0]) if runs[0] else Cost(), least(runs[1]), case.limit(now)]


def beside(case: Case) -> str:
    """What SimGrid takes, where it is installed; else what is recorded."""
    name = case.name.removeprefix("network: ")
    if name in simgrid_flows.CASES and simgrid_flows.installed():
        return simgrid_flows.beside(name)
    return case.beside


def about(before: Version | None, now: Version) -> str:
    """A sentence on what ran where."""
    head = ["git", "log", "-1", "--format=%h of %cs"]
    names = [
        subprocess.run(
            head, cwd=each.folder, check=True, stdout=subprocess.PIPE, text=True
        )
        for each in (before, now)
        if each is not None
    ]
    said = ", now: ".join(name.stdout.strip() for name in names)
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next(
        line.split(":")[1].strip() for line in info if line.startswith("model name")
    )
    return (
        f"{'Before' if before else 'Now'}: {said}. {os.cpu_count()} cores of {cpu}, Python"
        f" {platform.python_version()}, load {os.getloadavg()[0]:.1f} at the start."
    )


def main(against: Path | None, only: str, long: bool, write: bool) -> None:
    """Print the table as it grows, and write it into the page."""
    with tempfile.TemporaryDirectory() as cache:
        now = Version(ROOT, Path(cache) / "now")
        before = None
        if against is not None:
            longest = 100_000 if long else LONGEST
            before = Version(against.resolve(), Path(cache) / "before", longest)
        lines = [about(before, now), "", HEAD]
        print("\n".join(lines), flush=True)
        for version in filter(None, (before, now)):
            version.cache.mkdir()
            command_cost(["run", "quickstart"], version)  # compiles
        growth: list[dict[int, float]] = [{}, {}, {}]
        for case in CASES:
            if only not in case.name:
                continue
            costs = measured(case, before, now, long)
            if case.name.startswith(GROWTH):
                for found, cost in zip(growth, costs, strict=True):
                    if cost.seconds:
                        found[int(case.name.split()[2])] = cost.seconds
            lines.append(row(case.name, *costs, case.wanted, beside(case)))
            print(lines[-1], flush=True)
    powers = [Cost(power(found)) for found in growth]
    if any(power.seconds for power in powers):
        lines.append(row(GROWTH_POWER, *powers, Cost(1.2)))
        print(lines[-1])
    if write:
        from validation_tables import put  # what it imports takes a while

        put(PAGE, "speed", "\n".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="All speeds that matter, in one table."
    )
    parser.add_argument(
        "--against", metavar="CHECKOUT", type=Path, help="an older version"
    )
    parser.add_argument(
        "--only", metavar="TEXT", default="", help="cases whose names contain it"
    )
    parser.add_argument(
        "--long", action="store_true", help="the older version without a limit"
    )
    parser.add_argument(
        "--write", action="store_true", help="write the table into its page"
    )
    args = parser.parse_args()
    if args.write and args.only:
        parser.error("--write needs all cases: leave out --only")
    main(args.against, args.only, args.long, args.write)
