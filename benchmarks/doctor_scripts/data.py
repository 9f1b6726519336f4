"""The data of the scripts, made when first needed: the same ones wherever they are made."""

from __future__ import annotations

import bz2
import json
import shutil
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from PIL import Image

VERSION = 4
"""Of what is made: older folders are not used."""


def _images(count: int, pixels: int) -> NDArray[np.uint8]:
    """Squares in blurred colours, with some noise: shape (count, 3, pixels, pixels)."""
    chance = np.random.default_rng(0)
    blocks = chance.integers(0, 240, (count, 3, 8, 8), np.uint8)
    noise = chance.integers(0, 16, (count, 3, pixels // 2, pixels // 2), np.uint8)
    return blocks.repeat(pixels // 8, 2).repeat(pixels // 8, 3) + noise.repeat(
        2, 2
    ).repeat(2, 3)


def _files(folder: Path, images: NDArray[np.uint8]) -> None:
    folder.mkdir()
    for number, image in enumerate(images):
        (folder / f"{number}.bin").write_bytes(image.tobytes())


def _photos(folder: Path) -> None:
    """JPEGs: large of 512 x 512, middle of 320 x 320, small of 64 x 64."""
    for name, pixels in (("large", 512), ("middle", 320), ("small", 64)):
        (folder / name).mkdir()
        for number, image in enumerate(_images(256, pixels)):
            Image.fromarray(image.transpose(1, 2, 0)).save(
                folder / name / f"{number}.jpg", quality=95
            )


def _packed(folder: Path) -> None:
    """float32 images of 192 x 192, with zlib and without."""
    images = _images(128, 192).astype(np.float32) / 255
    images += np.random.default_rng(1).random(images.shape, np.float32) / 512
    for name, pack in (("plain", bytes), ("packed", zlib.compress)):
        (folder / name).mkdir()
        for number, image in enumerate(images):
            (folder / name / f"{number}.bin").write_bytes(pack(image.tobytes()))


def _array(folder: Path) -> None:
    """1024 images of 64 x 64 in one array, and an index with many names."""
    np.save(folder / "images.npy", _images(1024, 64))
    index = {f"image-{number}": number % 10 for number in range(300_000)}
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")


def _tiny(folder: Path) -> None:
    """Images of 64 x 64: a file each in near, far and tiny; the last 4 in cold; all in one."""
    images = _images(1024, 64)
    for name, some in (
        ("near", images[:-4]),
        ("far", images[:-4]),
        ("cold", images[-4:]),
    ):
        _files(folder / name, some)
    _files(folder / "tiny", images)
    (folder / "shard.bin").write_bytes(images.tobytes())


def _stored(folder: Path) -> None:
    """Images of 224 x 224 as float32 and as bytes."""
    images = _images(256, 224)
    for kind in ("float32", "uint8"):
        (folder / kind).mkdir()
        for number, image in enumerate(images):
            np.save(folder / kind / f"{number}.npy", image.astype(kind))


def _archives(folder: Path) -> None:
    """Eight arrays of 256 images of 64 x 64."""
    (folder / "plain").mkdir()
    for number, images in enumerate(_images(2048, 64).reshape(8, 256, 3, 64, 64)):
        np.save(folder / "plain" / f"{number}.npy", images)


def _shards(folder: Path) -> None:
    """2048 packed images of 64 x 64: 512 in a large shard, 16 in a small one."""
    images = _images(2048, 64)
    for name, shards in (("large", 4), ("small", 128)):
        (folder / name).mkdir()
        for number, some in enumerate(np.split(images, shards)):
            (folder / name / f"{number}.bz2").write_bytes(bz2.compress(some.tobytes()))


KINDS: Mapping[str, Callable[[Path], None]] = MappingProxyType(
    {
        "photos": _photos,
        "packed": _packed,
        "array": _array,
        "tiny": _tiny,
        "stored": _stored,
        "archives": _archives,
        "shards": _shards,
    }
)
"""What makes data of a kind in an empty folder."""


def made(kind: str, root: Path) -> Path:
    """The folder of such data below ``root``; made if it is not there."""
    folder = root / f"{kind}-{VERSION}"
    if not folder.is_dir():
        unfinished = root / f"{kind}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        KINDS[kind](unfinished)
        unfinished.rename(folder)
    return folder
