"""ImageFolder: a tree of image files, of which every rank keeps its own files in local
storage.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import Dataset

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Ints
from simshuffle.train.data_files import UNREADABLE, convert_image, images_by_class
from simshuffle.train.distributed.dataset import Payload, ShardDataset
from simshuffle.train.distributed.group import RankGroup
from simshuffle.train.partition import Partition

_HEAD = 8
"""Bytes of width and height before the pixels of a decoded image."""


class _FileTree(Dataset[bytes]):
    """The files of a tree as bytes, class number and content, numbered class by class
    in the order of names.

    Args:
        root: the tree.
        classes: names of the folders in ``root``, by class number.
        files: class number and path in the class folder, of each sample.
    """

    def __init__(
        self, root: Path, classes: list[str], files: list[tuple[int, str]]
    ) -> None:
        self.root = root
        self.classes = classes
        self.files = files
        self.targets = np.array([label for label, _ in files], np.int64)

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.files)

    def path(self, sample: int) -> Path:
        """Return the path of a sample's file."""
        label, name = self.files[sample]
        return self.root / self.classes[label] / name

    def __getitem__(self, sample: int) -> bytes:
        """Return the class number, in four bytes, and the content of a file."""
        return (
            int(self.targets[sample]).to_bytes(4, "little")
            + self.path(sample).read_bytes()
        )


class ImageFolder(ShardDataset):
    """Images in ``root``/CLASS/..., numbered class by class; classes are numbered by
    name. Items are (image, class number).

    The encoded files themselves are staged and exchanged, behind four bytes of the
    class number; an image is decoded, to RGB, and transformed when it is read. Rank 0
    lists the tree for all. With an exchange whose payload is 'decoded', pixels travel,
    and the receiver stores them as PNG, which loses nothing.

    Args:
        root: the tree, on a file system that every rank sees.
        storage, partition, seed: as of `ShardDataset`.
        transform: of the Pillow image (RGB).

    Raises:
        InputError: on every rank: the tree holds no images in folders of classes.
    """

    def __init__(
        self,
        root: str | Path,
        storage: str | Path | None = None,
        transform: Callable[[Image.Image], Any] | None = None,
        *,
        partition: str | Partition = "random",
        seed: int = 0,
    ) -> None:
        tree = _read_tree(Path(root), RankGroup.current())
        super().__init__(tree, storage, partition=partition, seed=seed)
        self._tree = tree
        self._image_transform = transform

    @property
    def classes(self) -> list[str]:
        """Names of the classes, by number."""
        return self._tree.classes

    def __getitem__(self, sample: int) -> Any:
        """Return (image, class number) of a sample; the image is the result of
        ``transform``, if a transform was given.

        Raises:
            InputError: the sample is not staged on this rank, or its file is not an
                image.
        """
        content = self.store.get(int(sample)) if self.staged else self.read(int(sample))
        try:
            image = _decode_image(content[4:])
        except UNREADABLE as error:
            name = str(self._tree.path(int(sample)))
            remedy = "Remove or repair the file."
            refuse(name, "must be an image", str(error), remedy, "dataset")
        label = int.from_bytes(content[:4], "little")
        return image if self._image_transform is None else self._image_transform(
            image
        ), label

    def read(self, sample: int) -> bytes:
        """Return the class number, in four bytes, and the content of a sample's file."""
        return self._tree[sample]

    def nbytes(self, samples: Ints) -> list[int]:
        """Return the size of each sample's file, plus 4 bytes of the class number."""
        return [self._tree.path(int(sample)).stat().st_size + 4 for sample in samples]

    def to_payload(self, content: bytes, payload: Payload) -> bytes:
        """Return the bytes to send: as stored; or class, width, height and RGB pixels,
        if 'decoded'.

        Raises:
            InputError: the file is not an image that can be decoded.
        """
        if payload == "encoded":
            return content
        try:
            image = _decode_image(content[4:])
        except UNREADABLE as error:
            rule = "must be readable, since payload: decoded sends decoded images"
            remedy = "Use payload: encoded."
            refuse("image", rule, str(error), remedy, "dataset")
        # class number, width, height, each in four bytes; then pixels
        size = [side.to_bytes(4, "little") for side in (image.width, image.height)]
        return b"".join([content[:4], *size, image.tobytes()])

    def from_payload(self, received: bytes, payload: Payload) -> bytes:
        """Return the bytes to store: as received; of pixels, a PNG file behind the
        class number.
        """
        if payload == "encoded":
            return received
        size = (
            int.from_bytes(received[4:8], "little"),
            int.from_bytes(received[8:12], "little"),
        )
        png = io.BytesIO()
        image = Image.frombytes("RGB", size, received[4 + _HEAD :])
        image.save(png, "PNG", compress_level=1)
        return received[:4] + png.getvalue()


def _decode_image(content: bytes) -> Image.Image:
    """Return the image of a file's ``content``, as RGB; raise one of `UNREADABLE` if it
    is no image.

    Transparency is dropped, and 16-bit grey becomes its upper byte.
    """
    with Image.open(io.BytesIO(content)) as image:
        return convert_image(image, "RGB")


def _read_tree(root: Path, ranks: RankGroup) -> _FileTree:
    """Return the tree as rank 0 sees it; raise InputError on all ranks if it has no
    images.

    Collective.
    """
    # one rank lists for all, so that all number the files alike
    listing: dict[str, Any] = {}
    if ranks.rank == 0:
        try:
            listing = _list_tree(root)
        except OSError as error:
            listing = {"problem": str(error)}
    listing = json.loads(
        ranks.gather_texts(json.dumps(listing) if ranks.rank == 0 else "")[0]
    )
    if "problem" in listing or not listing["files"]:
        value = listing.get("problem", f"{root} without any")
        rule = "must hold images in a folder for each class"
        remedy = "Check the path."
        refuse("root", rule, value, remedy, "dataset")
    return _FileTree(
        root, listing["classes"], [(label, name) for label, name in listing["files"]]
    )


def _list_tree(root: Path) -> dict[str, Any]:
    """Return the names of the 'classes', and the 'files' as (class number, path in its
    folder).

    Folders in ``root`` whose names begin with a dot are no classes. Files that do not
    end as images do are left out. If a class has no images, there is only a 'problem'.
    """
    images = images_by_class(root)
    files = [
        (label, path.relative_to(root / name).as_posix())
        for label, (name, paths) in enumerate(images.items())
        for path in paths
    ]
    empty = [name for name, paths in images.items() if not paths]
    if files and empty:
        return {"problem": f"{', '.join(empty)} without any"}
    return {"classes": list(images), "files": files}
