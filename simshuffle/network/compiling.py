"""How the kernels are compiled: numba's decorators with the types of what they decorate.

The first use of a kernel has to wait until it is compiled. numba by itself optimises every
function, makes machine code of it, and then does both again in each function that calls it, up to
the entry. Here a function that only other compiled ones call is left as it was translated, so that
it is optimised and made machine code once, as part of its entry: the same answers, after two thirds
of the time.
"""

from __future__ import annotations

import gc
import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numba.core import codegen, compiler

F = TypeVar("F", bound=Callable[..., Any])
# Indices are widened with it before they are passed on: numba compiles a function once more for
# each type that it is called with.
int64: Any = np.int64
_njit: Any = njit  # its type does not know all its options
_codegen: Any = codegen  # these have none
_Library: Any = _codegen.JITCodeLibrary
_Linkage: Any = _codegen.ll.Linkage
_CompilerBase: Any = compiler.CompilerBase
_Passes: Any = compiler.DefaultPassBuilder


def fingerprint(folder: Path) -> str:
    """Twelve digits that change with any Python source in ``folder`` and the folders below it."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


SOURCES = fingerprint(Path(__file__).parent)
NO_CACHE = (
    "the network kernels are compiled anew in every run, about 11 s: set NUMBA_CACHE_DIR to a"
    " folder that you may write to"
)


class _Part(_Library):  # type: ignore[misc]
    """Code that is only ever linked into other code, as it was translated.

    A method that a release of numba does not know is not called there: the part is then compiled
    for itself as well, to no effect.
    """

    def _optimize_functions(self, ll_module: Any) -> None:
        pass

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True  # without being made machine code

    def get_pointer_to_function(self, name: str) -> int:
        return 0

    @property
    def codegen(self) -> Any:
        return self

    def set_env(self, name: str, env: Any) -> None:
        """Code that is not in memory has no place for the objects that its function refers to."""


class _Whole(_Library):  # type: ignore[misc]
    """Code of an entry with all that it calls, which nothing else will be linked with.

    Told so, LLVM leaves out the arguments that a function does not use (an array is seven), and
    puts what is called once where it is called.
    """

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == _Linkage.linkonce_odr:
                function.linkage = _Linkage.internal
        try:  # once: numba does it twice, for the sake of reference counts
            passes, builder = self._codegen._module_pass_manager()
        except (AttributeError, TypeError):  # another release of numba
            super()._optimize_final_module()
        else:
            passes.run(self._final_module, builder)


class _Compiler(_CompilerBase):  # type: ignore[misc]
    """numba's own compiler, without collecting garbage meanwhile: it makes many objects, and little
    of it is garbage before the end."""

    def compile_extra(self, func: Any) -> Any:
        collecting = gc.isenabled()
        gc.disable()
        try:
            return super().compile_extra(func)
        finally:
            if collecting:
                gc.enable()

    library: Any = _Whole

    def define_pipelines(self) -> list[Any]:
        self.state.library = self.library(
            self.state.targetctx.codegen(), self.state.func_id.func_qualname
        )
        self.state.library.enable_object_caching()
        return [_Passes.define_nopython_pipeline(self.state)]


class _PartCompiler(_Compiler):
    """Compiles to a `_Part`."""

    library = _Part


def entry(function: F) -> F:
    """Compile ``function`` with numba, keeping its type; the machine code is cached on disk,
    together with all that it calls.

    numba looks for changes in the file of ``function`` alone; what it calls may stand in others, so
    their fingerprint is part of its name.
    """
    function.__qualname__ = f"{function.__qualname__}_{SOURCES}"
    options = {"pipeline_class": _Compiler, "error_model": "numpy", "_nrt": False}
    try:
        return cast(F, _njit(cache=True, **options)(function))
    except RuntimeError:  # numba found no folder that it may write to
        warnings.warn(NO_CACHE, stacklevel=1)  # said once, and not for each kernel
        return cast(F, _njit(**options)(function))


def compiled(function: F) -> F:
    """Compile ``function`` for other compiled functions only, as a part of each entry that needs
    it."""
    return cast(F, _part()(function))


def reducing(function: F) -> F:
    """As `compiled`, for sums and minima over values that are not NaN: their order is free, so that
    vector instructions can be used."""
    return cast(F, _part(fastmath={"nnan", "nsz", "reassoc"})(function))


def _part(**options: Any) -> Any:
    return _njit(
        pipeline_class=_PartCompiler,
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
        error_model="numpy",
        _nrt=False,
        **options,
    )
