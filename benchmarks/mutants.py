"""Mutation testing: change one line of simshuffle, run the tests that cover it, see if one fails.

mutmut 3 leaves out decorated functions and constants of modules, chooses tests by function, and
draws no sample; cosmic-ray changes the checkout and runs one command for all mutants. Which test
runs which line is recorded once, in build/mutants. coverage sees no line of a compiled function: it
gets the tests of the Python beside it (``fluid_sweep.py``: of ``fluid*.py``). What an import runs
gets the tests of its file.

One process imports package and tests once. Each mutant gets a fork of it, whose functions get the
changed code, so that most mutants are tried in a second; what a fork cannot change (a constant of a
module, a compiled function) gets a new Python.
"""

import argparse
import ast
import csv
import gc
import importlib
import os
import pkgutil
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType

import psutil
import pytest
from coverage import Coverage, CoverageData

import simshuffle
from benchmarks.mutations import TEXT_PATHS, Mutations

ROOT = Path(__file__).parents[1]
COPY = "MUTANTS_COPY"
IS_COPY = COPY in os.environ  # this file is one of the copy, whose sources may change
RECORD = Path(os.environ.get("MUTANTS_RECORD", ROOT / "build" / "mutants"))
KERNELS = ["tests/physics/test_fluid.py", "tests/physics/test_packet.py"]  # compile all
OUTCOMES = ["killed", "survived", "no test", "not counted"]
LIMIT, COMPILING, MOST_TESTS = (
    60,
    120,
    200,
)  # s of a mutant's tests, more to compile; tests
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S+?\.py::.+?)(?: - .*)?$", re.MULTILINE)


# pytest has this file as a plugin while the record is made, in a process for each core
COVERAGE = None
if "PYTEST_XDIST_WORKER" in os.environ and "MUTANTS_RECORD" in os.environ:
    COVERAGE = Coverage(data_suffix=True)
    COVERAGE.start()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    """Tell coverage which test runs."""
    COVERAGE.switch_context(item.nodeid)


def pytest_runtest_logreport(report):
    if COVERAGE is None:
        with (RECORD / "times").open("a") as file:
            print(
                report.duration,
                report.when,
                report.outcome,
                report.nodeid,
                sep="\t",
                file=file,
            )


def pytest_sessionfinish():
    if COVERAGE is not None:
        COVERAGE.stop()
        COVERAGE.save()


class Tests:
    """Which tests ran which line when the record was made, and how long each takes (s)."""

    def __init__(self):
        self.data, self.seconds, self.setup = (
            CoverageData(RECORD / "coverage"),
            {},
            Counter(),
        )
        self.data.read()
        rows = [
            row.split("\t", 3) for row in (RECORD / "times").read_text().splitlines()
        ]
        for seconds, when, _, test in rows:
            file = test.split("::")[0]  # whose first test sets up what the others use
            self.setup[file] = max(self.setup[file], float(seconds) * (when == "setup"))
            self.seconds[test] = self.seconds.get(test, 0.0) + float(seconds) * (
                when == "call"
            )
        for test in {test for _, _, outcome, test in rows if outcome != "passed"}:
            del self.seconds[test]

    def covering(self, mutant):
        """The tests that run the line, or the functions of its file if that cannot be known."""
        path = ROOT / mutant.file
        tests = set()
        is_recorded = path.read_text() == (RECORD / "sources" / mutant.file).read_text()
        if mutant.code == "function" and is_recorded:
            by_line = self.data.contexts_by_lineno(mutant.file)
            lines = by_line.get(mutant.line) or by_line.get(mutant.statement) or ()
            return self.seconds.keys() & lines
        pattern = (
            f"{path.stem.split('_')[0]}*.py" if mutant.code == "compiled" else path.name
        )
        for beside in path.parent.glob(pattern):
            file = beside.relative_to(ROOT).as_posix()
            source = ast.walk(ast.parse((RECORD / "sources" / file).read_text()))
            bodies = [node for node in source if isinstance(node, ast.FunctionDef)]
            inside = {
                i
                for node in bodies
                for i in range(node.body[0].lineno, node.end_lineno + 1)
            }
            for line, contexts in self.data.contexts_by_lineno(file).items():
                tests.update(contexts if line in inside else ())
        return self.seconds.keys() & tests

    def choose(self, mutant):
        """Two tests of each function, fastest first, then others that run the line, then others of
        their files, which may use what those have cached; all take at most half of the limit."""
        covering = self.covering(mutant)
        number = Counter()
        left = LIMIT / 2
        chosen = {}
        files = {test.split("::")[0] for test in covering}
        order = []
        beside = {
            test for test in self.seconds if test.split("::")[0] in files
        } - covering
        for test in sorted(
            covering | beside, key=lambda test: (self.seconds[test], test)
        ):
            number[test.split("[")[0]] += 1
            order.append(
                (
                    test in beside,
                    number[test.split("[")[0]] > 2,
                    self.seconds[test],
                    test,
                )
            )
        for *_, seconds, test in sorted(order)[:MOST_TESTS]:
            file = test.split("::")[0]
            cost = seconds + (0.0 if file in chosen else self.setup[file])
            if cost <= left:
                left -= cost
                chosen.setdefault(file, []).append(test)
        return [test for tests in chosen.values() for test in tests]


def python(tree, *words):
    """Run a module with Python in a copy of the checkout, to its end; return its status."""
    paths = os.pathsep.join([str(tree), str(tree / "plugins" / "testbed")])
    env = {**os.environ, "PYTHONPATH": paths, "MUTANTS_RECORD": str(RECORD)}
    env["COVERAGE_FILE"] = str(RECORD / "coverage")
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=tree, env=env, check=False).returncode


def copy_checkout(tree):
    """Copy what git knows or would add."""
    command = ["git", "ls-files", "-coz", "--exclude-standard"]
    for name in subprocess.check_output(command, cwd=ROOT, text=True).split("\0"):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


def record(tree):
    """Run all tests under coverage, but those of the documentation, which start processes."""
    shutil.rmtree(RECORD, ignore_errors=True)
    shutil.copytree(tree / "simshuffle", RECORD / "sources" / "simshuffle")
    print(
        "which test runs which line, once: two to three times as long as make test",
        flush=True,
    )
    words = "-n auto --dist worksteal -q -p no:cacheprovider -p benchmarks.mutants"
    status = python(tree, "pytest", *words.split(), "--ignore=tests/docs")
    if status not in (0, 1):  # 1: some failed
        sys.exit("the tests could not be run")
    if python(tree, "coverage", "combine", "--quiet") != 0:
        sys.exit("what was covered could not be put together")
    (RECORD / "done").touch()


def import_all():
    """Import the package and its tests; return the functions of each file."""
    for module in pkgutil.walk_packages(simshuffle.__path__, "simshuffle."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for path in sorted(ROOT.glob("tests/*/test_*.py")):
        if path.parent.name != "docs":  # by the name that pytest gives it
            sys.path.insert(0, str(path.parent))
            with suppress(pytest.skip.Exception):
                importlib.import_module(path.stem)
    functions = {}
    for function in gc.get_objects():
        if isinstance(function, FunctionType):
            file = function.__code__.co_filename
            functions.setdefault(file, []).append(function)
    gc.freeze()
    return functions


def codes_of(code):
    """Map name and first line to the code of each function inside."""
    codes = {(code.co_qualname, code.co_firstlineno): code}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            codes |= codes_of(constant)
    return codes


def change_functions(functions, path):
    """Give the functions of a file the code that the file has now."""
    codes = codes_of(compile(path.read_text(), str(path), "exec"))
    for function in functions.get(str(path), []):
        code = function.__code__
        new = codes.get((code.co_qualname, code.co_firstlineno), code)
        if new.co_freevars == code.co_freevars:
            function.__code__ = new


def run_tests(tests, limit, changed=None):
    """Run tests in a fork; return their status (None: time-out) and what they print.

    ``limit`` is in seconds of a machine with nothing else to do; on a busy one it is longer.
    ``changed`` holds the imported functions and the path of the file whose code is changed; without
    it, the tests run in a new Python.
    """
    limit *= max(1.0, os.getloadavg()[0] / os.cpu_count())
    words = ["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", *tests]
    with tempfile.TemporaryFile("w+") as out:
        process = os.fork()
        if process == 0:
            os.setsid()
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            if changed is None:
                os.execv(sys.executable, [sys.executable, "-m", "pytest", *words])
            status = (
                pytest.ExitCode.INTERNAL_ERROR
            )  # such as code that cannot be compiled
            try:
                change_functions(*changed)
                status = pytest.main(words)
                sys.stdout.flush()
            finally:  # what the process that forks does next is not for its fork
                os._exit(int(status))
        status = None
        try:
            with suppress(psutil.TimeoutExpired):
                status = psutil.Process(process).wait(limit)
        finally:  # some tests' processes have sessions of their own
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process).children(recursive=True):
                    child.kill()
            with suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(process, 0)
        out.seek(0)
        return status, out.read()


def run(tests, functions, mutant, number):
    """Run a mutant's tests; return the outcome, their number and which failed."""
    chosen = tests.choose(mutant)
    if not chosen:
        return "no test", 0, []
    path = ROOT / mutant.file
    source = path.read_text()
    times = path.stat()
    lines = source.split("\n")
    lines[mutant.line - 1] = lines[mutant.line - 1].replace(mutant.before, mutant.after)
    limit = LIMIT + COMPILING * mutant.file.startswith("simshuffle/fabric/network/")
    changed = (functions, path) if mutant.code == "function" else None
    try:  # the processes that tests start read the file
        path.write_text("\n".join(lines))
        os.utime(path, (number, number))  # no two mutants of a file have one time
        status, output = run_tests(chosen, limit, changed)
        if status == 4 and "ERROR: not found" in output:  # values name tests
            names = dict.fromkeys(test.split("[")[0] for test in chosen)
            status, output = run_tests(names, limit, changed)
    finally:
        path.write_text(source)
        os.utime(path, (times.st_atime, times.st_mtime))  # what is compiled stays valid
    is_renamed = status == 4 and "ERROR: not found" in output
    is_slow = status is None and run_tests(chosen, LIMIT / 2 + 10)[0] != 0
    if is_renamed or is_slow:
        return "not counted", 0, []
    outcome = "survived" if status == 0 else "killed"
    return outcome, len(chosen), FAILED.findall(output)


def folder_of(file):
    """Two levels below the package, such as "fabric/network"."""
    return "/".join(file.split("/")[1:-1][:2]) or file.split("/")[1]


def draw(seed, room):
    """A folder's mutants in the order of the seed, one for each line, none that is equivalent."""
    with (ROOT / "benchmarks" / "equivalent_mutants.csv").open() as file:
        skipped = {
            (row["file"], row["before"], row["after"]) for row in csv.DictReader(file)
        }
    by_line = {}
    for path in (ROOT / "simshuffle").rglob("*.py"):
        file = path.relative_to(ROOT).as_posix()
        if room in ("", *folder_of(file).split("/")) and not TEXT_PATHS.fullmatch(file):
            for mutant in Mutations(file, path.read_text()).found:
                if (mutant.file, mutant.before, mutant.after) not in skipped:
                    by_line.setdefault((file, mutant.line), []).append(mutant)
    drawn = [
        min(mutants, key=lambda mutant: mutant.rank(seed))
        for mutants in by_line.values()
    ]
    return sorted(drawn, key=lambda mutant: mutant.rank(f"line {seed}"))


def report(results):
    """Print the survivors, and a table of what was killed in each room."""
    for mutant, outcome, count, _ in results:
        if outcome == "survived":
            print(f"\n{mutant.file}:{mutant.line} passes {count} tests")
            print(f"  - {mutant.before}\n  + {mutant.after}")
    print("\nfolder".ljust(25), *(f"{name:>11}" for name in [*OUTCOMES, "kill rate"]))
    for room in [*sorted({folder_of(mutant.file) for mutant, *_ in results}), ""]:
        counts = Counter(
            outcome
            for mutant, outcome, *_ in results
            if room in (folder_of(mutant.file), "")
        )
        tried = counts["killed"] + counts["survived"]
        rate = f"{counts['killed'] / tried:.0%}" if tried else "-"
        row = [*(counts[name] for name in OUTCOMES), rate]
        print(f"{room or 'all':24}", *(f"{value:>11}" for value in row))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", default="1")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument(
        "--room", default="", help="a folder of simshuffle; all unless given"
    )
    args = parser.parse_args()
    if not IS_COPY:
        with tempfile.TemporaryDirectory() as folder, suppress(KeyboardInterrupt):
            tree = copy_checkout(Path(folder).resolve())
            if not (RECORD / "done").exists():
                record(tree)
            python(tree, "pytest", "-q", "-p", "no:cacheprovider", *KERNELS)
            os.environ[COPY] = "1"
            return python(tree, "benchmarks.mutants", *sys.argv[1:])
    results = []
    mutants = draw(args.seed, args.room)[: args.count]
    if not mutants:
        sys.exit(f"no mutants in simshuffle/{args.room}")
    tests = Tests()
    functions = import_all()
    began = time.monotonic()
    with suppress(KeyboardInterrupt):
        for number, mutant in enumerate(mutants, 1):
            results.append((mutant, *run(tests, functions, mutant, number)))
            left = (time.monotonic() - began) / number * (len(mutants) - number) / 60
            place = f"{number}/{len(mutants)} {mutant.file}:{mutant.line}"
            print(f"{place} {results[-1][1]}, {left:.0f} min left", flush=True)
        killers = {test for *_, failed in results for test in failed}
        # one that fails without a mutant too kills none
        flaky = {
            test
            for test in sorted(killers)
            if run_tests([test], LIMIT)[0] not in (0, 4)
        }
        for i, (mutant, _, count, failed) in enumerate(results):
            if flaky.intersection(failed):
                results[i] = mutant, "not counted", count, failed
    report(results)


if __name__ == "__main__":
    sys.exit(main())
