"""How the kernels are compiled: numba's decorators with the types of what they decorate."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit

F = TypeVar("F", bound=Callable[..., Any])
# Indices are widened with it before they are passed on: numba compiles a function once more for each type that it is called with.
int64: Any = np.int64
_njit: Any = njit  # its type does not know all its options


def _fingerprint() -> str:
    """A mark of all sources in this folder, which changes with any of them."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


SOURCES = _fingerprint()


def entry(function: F) -> F:
    """Compile ``function`` with numba, keeping its type; the machine code is cached on disk, together with all that it calls.

    numba looks for changes in the file of ``function`` alone; what it calls may stand in others, so their mark is part of its name.
    """
    function.__qualname__ = f"{function.__qualname__}_{SOURCES}"
    return cast(F, _njit(cache=True, error_model="numpy", _nrt=False)(function))


def compiled(function: F) -> F:
    """Compile ``function`` for other compiled functions only: without the wrappers for Python, which take longer to build than it."""
    return cast(F, _njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy", _nrt=False)(function))


def merged(function: F) -> F:
    """As `compiled`, for a function with one caller and many callees: compiled as a part of its caller, which takes less time in all."""
    return cast(F, _njit(inline="always", error_model="numpy", _nrt=False)(function))


def reducing(function: F) -> F:
    """As `compiled`, for sums and minima over values that are not NaN: their order is free, so that vector instructions can be used."""
    relaxed = {"nnan", "nsz", "reassoc"}
    return cast(F, _njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy", _nrt=False, fastmath=relaxed)(function))
