"""The functions that read, decode and lock, by the modules they are of."""

from __future__ import annotations

import functools
from typing import Any

from .meter import DECODE, LOCK, OPEN, READ
from .patching import Patches, Timed, timed

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
"""By module: names of functions, or of methods with their class, and what they do. A file that is
read with `open` is seen without them; what is read in C shows as its operation here. Names that a
version does not have are left out."""
_READERS = ("_compression", "compression._common._streams")
"""Where the common reader of gzip, bz2 and lzma is, by version of Python."""


def watch_calls(patches: Patches) -> None:
    """Time them all from now on."""
    for module, names in CALLS.items():
        patches.when_imported(module, functools.partial(_patch, patches, names))
    for module in _READERS:
        read = {"DecompressReader.read": DECODE}
        patches.when_imported(module, functools.partial(_patch, patches, read))
    patches.when_imported("multiprocessing.synchronize", functools.partial(_locks, patches))


def _patch(patches: Patches, names: dict[str, int], module: Any) -> None:
    for name, operation in names.items():
        owner, _, attribute = name.rpartition(".")
        place = getattr(module, owner, None) if owner else module
        function = vars(place).get(attribute) if place is not None else None
        if function is not None:
            patches.replace(place, attribute, timed(function, operation))


def _locks(patches: Patches, module: Any) -> None:
    """The method `acquire` of these locks is an attribute of each."""
    make = module.SemLock._make_methods

    @functools.wraps(make)
    def make_methods(self: Any) -> None:
        make(self)
        self.acquire = Timed(self.acquire, LOCK)

    patches.replace(module.SemLock, "_make_methods", make_methods)
