"""Compilation of the kernels: numba's decorators with the types of what they decorate;
and arrays that compiled code finds by one address.

numba by itself optimises every function, makes machine code of it, and does both again
in each function that calls it, up to the entry. Here a function that only other
compiled ones call is left as it was translated, and optimised once, as part of its
entry: the same answers, after half the time.

Each array that is passed to compiled code costs time: to take it apart with every call
from Python, to hand it on, and to translate all that. So `words` writes a named tuple
as integers of 64 bits, an array as its address and its shape; a kernel gets the address
of the first word, and `at_address` makes the function that turns it into the tuple
again. Four things are said to numba by its extension points (its documentation,
"Low-level extension API"): `_AddressedTuple`, the type; `_AddressedTupleModel`, what a
value is in machine code; `_AddressedTupleFields`, the type of ``s.field``;
`_read_field`, how that is read.

The words are right as long as no array is replaced: whoever replaces one writes new
words (`FluidNetwork._write_words`, `PacketCore.replace_arrays`) and keeps tuple and
words alive, since compiled code counts no references. If another release of numba
breaks it: ``tests/plain_kernels.py`` finds arrays by their address in plain Python, and
a test compares all kernels so run with the compiled ones bit for bit. If that still
works, what is wrong is in `_read_field` (compare numba/np/arrayobj.py, `make_array` and
`populate_array`) or in one of the three registrations.
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import logging
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from llvmlite.binding import Linkage
from numba import extending, njit, types
from numba.core import caching, codegen, compiler
from numba.core.typing import templates
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=tuple[Any, ...])
# Indices are widened with it before they are passed on: numba compiles a function once more for
# each type that it is called with.
int64: Any = np.int64
_njit: Any = njit  # its type does not know all its options
_codegen: Any = codegen  # these have none
_Library: Any = _codegen.JITCodeLibrary
_FunctionCache: Any = caching.FunctionCache
_NumbaFlags: Any = compiler.Flags
_CompilerBase: Any = compiler.CompilerBase
_Passes: Any = compiler.DefaultPassBuilder
_Type: Any = types.Type
_Attributes: Any = templates.AttributeTemplate
_Primitive: Any = extending.models.PrimitiveModel
intrinsic: Any = extending.intrinsic
_reader_of: Any = extending.lower_getattr_generic
_typeof: Any = numba.typeof
WORD: Any = ir.IntType(64)


def fingerprint(folder: Path) -> str:
    """Twelve hexadecimal digits that change with the text of any Python source in
    ``folder`` and the folders below it, and with this file.
    """
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


# no references are counted, and no code is made for what the kernels never do
OPTIONS = {
    "error_model": "numpy",
    "_nrt": False,
    "no_rewrites": True,
    "no_cfunc_wrapper": True,
}
SOURCES = fingerprint(Path(__file__).parents[1] / "fabric" / "network")
ONCE = "Compiling, once: a few seconds ..."
NO_CACHE = (
    "kernels are compiled anew in every run, for some seconds: set NUMBA_CACHE_DIR to a folder that"
    " you may write to"
)


@cache
def _announce_compilation() -> None:
    """Say, once a process, that something is compiled that will be kept: on standard
    error, unless the program that uses simshuffle has its own way with logs.
    """
    logging.getLogger("simshuffle").warning(ONCE)


class _PartLibrary(_Library):  # type: ignore[misc]
    """Code that is only ever linked into an entry, as it was translated, beside the
    parts that it calls.
    """

    def _optimize_functions(self, ll_module: Any) -> None:
        """Leave the functions as they are: they are optimised as part of an entry."""

    def finalize(self) -> None:
        """Make all functions of the code mergeable, as several parts may bring copies
        of a function; nothing is optimised or loaded.
        """
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == Linkage.external:
                function.linkage = Linkage.linkonce_odr
        self._shared_module = self._final_module
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return 0: the code is not in memory."""
        return 0

    @property
    def codegen(self) -> Any:
        """Return itself, whose `set_env` numba calls."""
        return self

    def set_env(self, name: str, env: Any) -> None:
        """Do nothing: code that is not in memory has no place for the objects that its
        function refers to.
        """


class _EntryLibrary(_Library):  # type: ignore[misc]
    """Code of an entry with all parts that it calls, directly or not, which nothing
    else will be linked with.

    Told so, LLVM leaves out the arguments that a function does not use, and puts what
    is called once where it is called.
    """

    def finalize(self) -> None:
        """Link all parts, also the parts that parts call, then finish as numba does."""
        libraries = self._linking_libraries
        for library in libraries:  # more are added meanwhile
            if isinstance(library, _PartLibrary):
                libraries += [
                    library_of_part
                    for library_of_part in library._linking_libraries
                    if library_of_part not in libraries
                ]
        super().finalize()

    def _optimize_final_module(self) -> None:
        """Make functions of the parts internal to the entry; optimise all once."""
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == Linkage.linkonce_odr:
                function.linkage = Linkage.internal
        try:  # once: numba does it twice, for the sake of reference counts
            passes, builder = self._codegen._module_pass_manager()
        except (AttributeError, TypeError):  # another release of numba
            super()._optimize_final_module()
        else:
            passes.run(self._final_module, builder)


class _Flags(_NumbaFlags):  # type: ignore[misc]
    """numba's options, compared by those that are set: it compares them with every
    operation.
    """

    __slots__ = ()

    def __eq__(self, operand: object) -> bool:
        return isinstance(operand, _Flags) and bool(self._values == operand._values)

    def __hash__(self) -> int:
        return len(self._values)


class _Compiler(_CompilerBase):  # type: ignore[misc]
    """numba's compiler without garbage collection, which finds little while numba makes
    many objects.
    """

    library: Any = _EntryLibrary

    def compile_extra(self, func: Any) -> Any:
        """Compile a function; no garbage is collected meanwhile."""
        self.state.flags = _Flags(self.state.flags)
        collecting = gc.isenabled()
        gc.disable()
        try:
            return super().compile_extra(func)
        finally:
            if collecting:
                gc.enable()

    def define_pipelines(self) -> list[Any]:
        """Return numba's own passes, which put the code into a `library`."""
        name = self.state.func_id.func_qualname
        self.state.library = self.library(self.state.targetctx.codegen(), name)
        self.state.library.enable_object_caching()
        return [_Passes.define_nopython_pipeline(self.state)]


class _PartCompiler(_Compiler):
    """Compiler of functions that only other compiled functions call: it makes a
    `_PartLibrary`.
    """

    library = _PartLibrary


class _Cache(_FunctionCache):  # type: ignore[misc]
    """The cache of numba on disk; it loads cached code without all that numba needs for
    compiling, which takes longer and more memory than the rest.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load cached code; None, and a word to the user, if it is to be compiled."""
        with self._guard_against_spurious_io_errors():
            overload = self._load_overload(sig, target_context)
            if overload is None:
                _announce_compilation()
            return overload

    def compile_exclusively(
        self, compile_or_load: Callable[[Any], Any], sig: Any
    ) -> Any:
        """Compile or load while no other process does: processes that begin side by
        side would each compile this code. They do where files cannot be locked.
        """
        with ExitStack() as stack:
            with suppress(OSError):  # where files cannot be locked
                lock = stack.enter_context(
                    Path(self.cache_path, "compiling.lock").open("w")
                )
                fcntl.flock(lock, fcntl.LOCK_EX)
            return compile_or_load(sig)


def entry(function: F) -> F:
    """Compile ``function`` with numba when it is first called, keeping its type; the
    machine code is cached on disk, together with all that it calls. numba looks for
    changes in the file of ``function`` alone; what it calls may stand in others, so
    their fingerprint is added to its ``__qualname__``.

    Without a folder for the cache it is compiled in every process, with a warning.
    """
    function.__qualname__ = f"{function.__qualname__}_{SOURCES}"
    kernel = _njit(pipeline_class=_Compiler, **OPTIONS)(function)
    try:
        kernel._cache = _Cache(function)
    except RuntimeError:  # numba found no folder that it may write to
        warnings.warn(NO_CACHE, stacklevel=1)  # said once, and not for each kernel
    else:
        kernel.compile = partial(kernel._cache.compile_exclusively, kernel.compile)
    return cast(F, kernel)


def compiled(function: F) -> F:
    """Compile ``function`` for other compiled functions only, as a part of each entry
    that needs it. Python itself cannot call it.
    """
    return cast(F, _part_decorator()(function))


def reducing(function: F) -> F:
    """Compile ``function`` like `compiled`, for sums and minima over values that are
    not NaN: their order is free, so that vector instructions can be used. With NaN the
    result is arbitrary, and the sign of a zero is.
    """
    return cast(F, _part_decorator(fastmath={"nnan", "nsz", "reassoc"})(function))


def _part_decorator(**options: Any) -> Any:
    """Make numba's decorator of a part, with further options of numba."""
    return _njit(
        pipeline_class=_PartCompiler, no_cpython_wrapper=True, **OPTIONS, **options
    )


def words(values: Any) -> NDArray[np.int64]:
    """Write a named tuple of integers and arrays as compiled code reads it: every
    integer, and of every array its address and its shape. The words hold for as long as
    the tuple is kept. They are integers of 64 bits in the order of the fields.

    Raises:
        ValueError: an array is not C-contiguous.
    """
    integers: list[int] = []
    for name, value in zip(values._fields, values, strict=True):
        if not isinstance(value, np.ndarray):
            integers.append(value)
        elif value.flags.c_contiguous:
            integers += [value.ctypes.data, *value.shape]
        else:
            raise ValueError(f"the array '{name}' must be C-contiguous")
    return np.array(integers, np.int64)


class _AddressedTuple(_Type):  # type: ignore[misc]
    """The numba type of a named tuple that is written down as `words`.

    Attributes:
        fields: by name, the index of the first word, the type of the value, and the
            bytes of an item.
    """

    def __init__(self, example: Any) -> None:
        """Make the type of tuples whose fields have the types of ``example``'s."""
        super().__init__(
            f"Addressed{type(example).__module__}.{type(example).__name__}"
        )
        self.fields: dict[str, tuple[int, Any, int]] = {}
        word_index = 0
        for name, value in zip(example._fields, example, strict=True):
            self.fields[name] = word_index, _typeof(value), np.asarray(value).itemsize
            word_index += 1 + np.ndim(value)


@extending.register_model(_AddressedTuple)
class _AddressedTupleModel(_Primitive):  # type: ignore[misc]
    """The value of an addressed tuple in machine code: a pointer to its words."""

    def __init__(self, manager: Any, kind: _AddressedTuple) -> None:
        super().__init__(manager, kind, WORD.as_pointer())


@extending.infer_getattr
class _AddressedTupleFields(_Attributes):  # type: ignore[misc]
    """The types of the fields of an addressed tuple, for numba's type inference."""

    key = _AddressedTuple

    def generic_resolve(self, kind: _AddressedTuple, name: str) -> Any:
        """Return the type of a field; None if there is none of the name."""
        return kind.fields[name][1] if name in kind.fields else None


@_reader_of(_AddressedTuple)  # type: ignore[untyped-decorator]
def _read_field(
    context: Any, builder: Any, kind: _AddressedTuple, value: Any, name: str
) -> Any:
    """Make the machine code that reads a field: an integer is its word, an array is put
    together from address and shape.
    """
    from numba.np import arrayobj  # noqa: PLC0415 - for compiling alone

    arrays: Any = arrayobj
    first, item, size = kind.fields[name]

    def word(offset: int) -> Any:
        """Load a word of the field; ``offset`` counts words from its first."""
        loaded = builder.load(builder.gep(value, [WORD(first + offset)]))
        # nobody writes these words while compiled code runs
        loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
        return loaded

    if not isinstance(item, types.Array):
        return word(0)
    array = arrays.make_array(item)(context, builder)
    shape = [word(1 + axis) for axis in range(item.ndim)]
    # C-contiguous: the last index is one item away, the one before it as many as the last axis has
    strides = [WORD(size)]
    for length in shape[:0:-1]:
        strides.insert(0, builder.mul(strides[0], length))
    data = builder.inttoptr(word(0), array.data.type)
    arrays.populate_array(array, data, shape, strides, WORD(size), None)
    return array._getvalue()


def at_address(example: Callable[[], T]) -> Callable[[int], T]:
    """Make a function for compiled code that takes the address of `words` and returns
    their tuple.

    The fields of the tuple have the types of the fields of ``example()``, which is
    called when code is compiled. What stands at the address is not checked.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def tuple_at(_: Any, address: Any) -> Any:
        kind = _AddressedTuple(example())

        def code(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(kind))

        return kind(address), code

    return cast(Callable[[int], T], tuple_at)
