"""Time the functions of other packages that open, read, decode and lock."""

from __future__ import annotations

import functools
from typing import Any

from .meter import DECODE, LOCK, OPEN, READ
from .patching import Patches, TimedCallable, wrap_with_timer

CALLS = {
    "bz2": {"decompress": DECODE},
    "cv2": {"imdecode": DECODE, "imread": DECODE},
    "fcntl": {"flock": LOCK, "lockf": LOCK},
    "filelock._api": {"BaseFileLock.acquire": LOCK},
    "gzip": {"decompress": DECODE, "_GzipReader.read": DECODE},
    "h5py._hl.dataset": {"Dataset.__getitem__": READ},
    "h5py._hl.files": {"File.__init__": OPEN},
    "http.client": {
        "HTTPConnection.connect": OPEN,
        "HTTPConnection.getresponse": OPEN,
        "HTTPResponse.read": READ,
        "HTTPResponse.read1": READ,
        "HTTPResponse.readinto": READ,
    },
    "lz4.frame": {"decompress": DECODE},
    "lzma": {"decompress": DECODE},
    "multiprocessing.synchronize": {"SemLock.__enter__": LOCK},
    "numpy": {"fromfile": READ},
    "os": {"lockf": LOCK},
    "PIL.Image": {"open": DECODE},
    "PIL.ImageFile": {"ImageFile.load": DECODE},
    "PIL.TiffImagePlugin": {"TiffImageFile.load": DECODE},
    "PIL.WebPImagePlugin": {"WebPImageFile.load": DECODE},
    "soundfile": {"read": DECODE},
    "torch.serialization": {"load": READ},
    "torchaudio": {"load": DECODE},
    "torchvision.io.image": {
        "decode_gif": DECODE,
        "decode_image": DECODE,
        "decode_jpeg": DECODE,
        "decode_png": DECODE,
        "decode_webp": DECODE,
        "read_file": READ,
        "read_image": DECODE,
    },
    "torchvision.io.video": {"read_video": DECODE},
    "zipfile": {"ZipExtFile._read1": DECODE},
    "zlib": {"decompress": DECODE},
    "zstandard": {"decompress": DECODE},
}
"""By module: names of functions, or of methods with their class, and the operation of
each. Reads of a file that Python opened are timed without these; reads in C count as
the operation here. Names that a version does not have are left out.
"""
_READERS = ("_compression", "compression._common._streams")
"""Modules of the common reader of gzip, bz2 and lzma, by version of Python."""


def watch_calls(patches: Patches) -> None:
    """Time the functions of `CALLS` from now on, also of modules that are imported
    later, and the locks of multiprocessing that are made from then on.
    """
    for module, names in CALLS.items():
        patches.patch_on_import(module, functools.partial(_patch, patches, names))
    for module in _READERS:
        read = {"DecompressReader.read": DECODE}
        patches.patch_on_import(module, functools.partial(_patch, patches, read))
    patches.patch_on_import(
        "multiprocessing.synchronize", functools.partial(_patch_locks, patches)
    )


def _patch(patches: Patches, names: dict[str, int], module: Any) -> None:
    """Replace functions of a module by timed ones, with the operation of each name;
    names that the module does not have are passed over.
    """
    for name, operation in names.items():
        owner, _, attribute = name.rpartition(".")
        holder = getattr(module, owner, None) if owner else module
        function = vars(holder).get(attribute) if holder is not None else None
        if function is not None:
            patches.replace(holder, attribute, wrap_with_timer(function, operation))


def _patch_locks(patches: Patches, module: Any) -> None:
    """Time the locks of multiprocessing, each of which has `acquire` as its own
    attribute.
    """
    make = module.SemLock._make_methods

    @functools.wraps(make)
    def make_methods(self: Any) -> None:
        """Set the methods of a new lock, and time its `acquire`."""
        make(self)
        self.acquire = TimedCallable(self.acquire, LOCK)

    patches.replace(module.SemLock, "_make_methods", make_methods)
