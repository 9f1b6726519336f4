"""What works without extensions: ``python -m tests.core_alone`` copies the checkout without
``simshuffle/extensions``, imports every module and runs verbs; with ``--tests`` also every test of
physics, contracts and orders that needs no extension."""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("tests", "topologies", "scenarios", "studies", "validation", "docs", "plugins")
EVERYTHING = """
import importlib, pkgutil, simshuffle
for module in pkgutil.walk_packages(simshuffle.__path__, "simshuffle."):
    if "__main__" not in module.name:
        importlib.import_module(module.name)
"""
TESTS = "-m pytest -q -n auto --maxprocesses 4 -p no:cacheprovider"
RUN = "run quickstart --quiet --set epochs=1 --set world_size=4 --out result"


def imported_names(source):
    """The modules of this package and its tests, and names in them, that a source imports."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{name.name}" for name in node.names)]
        elif isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.Constant) and str(node.value).startswith("simshuffle."):
            names = [str(node.value)]
        yield from (name for name in names if name.startswith(("simshuffle", "tests")))


def needs_extensions(path, seen=frozenset()):
    """Whether a test's file, or a helper that it imports, names an extension."""
    names = list(imported_names(path.read_text(encoding="utf-8")))
    helpers = {ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in names} - seen
    return any(name.startswith("simshuffle.extensions") for name in names) or any(
        needs_extensions(helper, seen | helpers | {path})
        for helper in helpers
        if helper.is_relative_to(ROOT / "tests") and helper.is_file()
    )


def copy_core(place):
    """Copy the package without its extensions, and link what else the tests read."""
    skipped = shutil.ignore_patterns("extensions", "__pycache__")
    shutil.copytree(ROOT / "simshuffle", place / "simshuffle", ignore=skipped)
    shutil.copy(ROOT / "pyproject.toml", place)
    for name in FOLDERS:
        (place / name).symlink_to(ROOT / name)


def run_python(place, *words):
    """Run Python on the copy; return what it printed, or end with its errors."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(words)[:80]}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def main(with_tests):
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        copy_core(place)
        run_python(place, "-c", EVERYTHING)
        assert "simshuffle" in run_python(place, "-m", "simshuffle", "--help")
        run_python(place, "-m", "simshuffle", *RUN.split())
        if with_tests:
            names = [
                path.relative_to(ROOT).as_posix()
                for path in sorted(ROOT.glob("tests/*/test_*.py"))
                if path.parent.name in {"physics", "contracts", "orders"}
                and not needs_extensions(path)
            ]
            sys.stdout.write(run_python(place, *TESTS.split(), *names)[-200:])


if __name__ == "__main__":
    main("--tests" in sys.argv)
