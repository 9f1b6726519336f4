"""Interpreters that have the libraries that were recorded."""

import functools
import os
import subprocess
import sys

import pytest

VERSION = (
    "import sys; from importlib.metadata import PackageNotFoundError, version\n"
    "try: print(version(sys.argv[1]))\n"
    "except PackageNotFoundError: print('not there')"
)


@functools.cache
def version_of(library, python):
    """The version that an interpreter has of it, without that of a build, or why it has none."""
    words = [python, "-c", VERSION, library]
    try:
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    except OSError as error:
        return error.strerror
    return done.stdout.strip().partition("+")[0] or "no interpreter"


def python_with(needs):
    """An interpreter that has libraries at such versions, as in 'datasets 5.2.0, torchdata 0.11.0':
    this one, or one of those that SIMSHUFFLE_AUDIT_PYTHON_DATASETS names, separated as in PATH.
    Skips the test where there is none, and says what is missing."""
    wanted = dict(each.split(" ") for each in needs.split(", "))
    variable = f"SIMSHUFFLE_AUDIT_PYTHON_{next(iter(wanted)).upper().replace('-', '_')}"
    missing = []
    for python in [sys.executable, *filter(None, os.environ.get(variable, "").split(os.pathsep))]:
        has = {library: version_of(library, python) for library in wanted}
        if has == wanted:
            return python
        missing.append(f"{python} has " + ", ".join(f"{name} {of}" for name, of in has.items()))
    pytest.skip(f"needs {needs}; {variable} may name a Python that has it; {'; '.join(missing)}")
