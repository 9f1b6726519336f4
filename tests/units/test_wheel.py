"""The wheel: built without a network, complete, and usable where there is no checkout. That it
simulates there is what `make wheel` sees."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(cwd, *words, **more):
    """Run a command, and keep what it says."""
    how = {"capture_output": True, "text": True, "timeout": 900}
    return subprocess.run([sys.executable, *words], cwd=cwd, check=False, **how, **more)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The folder into which the wheel is unpacked, and nothing else."""
    built = tmp_path_factory.mktemp("wheel")
    pip = "pip wheel --no-deps --no-build-isolation --no-index --disable-pip-version-check"
    done = run(built, "-m", *pip.split(), "--no-cache-dir", str(ROOT), "-w", str(built))
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = built.glob("*.whl")
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def python(unpacked, cwd, *arguments):
    """Python that finds simshuffle in the unpacked wheel: not in the working directory, and there
    before any checkout."""
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    return run(cwd, "-P", *arguments, env=environment)


def names(folder, *patterns):
    return {
        path.relative_to(folder).as_posix()
        for pattern in patterns
        for path in folder.rglob(pattern)
    }


def test_the_wheel_holds_the_package_its_data_and_its_marker_of_types(unpacked):
    package = unpacked / "simshuffle"
    assert (package / "py.typed").is_file()
    assert names(package, "*.py") == names(ROOT / "simshuffle", "*.py")
    assert (
        names(package / "job" / "scenario" / "catalog", "*.yaml")
        == names(ROOT / "simshuffle" / "job" / "scenario" / "catalog", "*.yaml")
        != set()
    )
    for name in ("page.css", "page.js"):
        assert (package / "studies" / "presentation" / name).stat().st_size > 1000
    for folder in ("scenarios", "studies", "topologies", "validation"):
        shipped = package / "_shipped" / folder
        assert names(shipped, "*.*") == names(ROOT / folder, "*.*") != set()
        for name in names(shipped, "*.*"):
            assert (shipped / name).read_bytes() == (ROOT / folder / name).read_bytes()


def test_the_wheel_holds_nothing_else(unpacked):
    assert {path.name.partition("-")[0] for path in unpacked.iterdir()} == {"simshuffle"}
    suffixes = {path.suffix for path in (unpacked / "simshuffle").rglob("*") if path.is_file()}
    assert suffixes <= {f".{of}" for of in ("py", "pyi", "yaml", "csv", "json", "typed", "c")} | {
        *(".css", ".js")
    }


def test_the_wheel_names_its_command_its_licence_and_its_version(unpacked):
    (info,) = unpacked.glob("simshuffle-*.dist-info")
    assert "simshuffle = simshuffle.cli:entry_point" in (info / "entry_points.txt").read_text(
        encoding="utf-8"
    )
    metadata = (info / "METADATA").read_text()
    assert "License-Expression: MIT" in metadata
    assert list(info.rglob("LICENSE"))
    version = run(ROOT, "-m", "simshuffle", "--version").stdout.split()[-1]
    assert f"\nVersion: {version}\n" in metadata
    assert info.name == f"simshuffle-{version}.dist-info"


def test_the_wheel_works_without_a_checkout(unpacked, tmp_path):
    where = python(unpacked, tmp_path, "-c", "import simshuffle; print(simshuffle.__file__)")
    assert Path(where.stdout.strip()).is_relative_to(unpacked), where.stdout + where.stderr
    checked = python(unpacked, tmp_path, "-m", "simshuffle", "check", "abci-imagenet1k", "--full")
    assert checked.returncode == 0, checked.stderr
    assert "iterations per epoch: 20" in checked.stdout
    assert list(tmp_path.iterdir()) == []
    code = (
        "from simshuffle.spec.library import find_file;"
        "print(find_file('paper/strategies', 'scenarios'))"
    )
    found = python(unpacked, tmp_path, "-c", code)
    assert Path(found.stdout.strip()).is_relative_to(unpacked), found.stdout + found.stderr
    assert (
        python(unpacked, tmp_path, "-m", "simshuffle", "check", "paper/strategies").returncode == 0
    )
