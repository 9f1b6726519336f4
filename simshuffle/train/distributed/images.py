"""ImageFolder: a tree of image files, of which every rank keeps its own in local storage."""

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
from simshuffle.train.data_files import ENDINGS, UNREADABLE
from simshuffle.train.distributed.dataset import Payload, ShardDataset
from simshuffle.train.distributed.group import RankGroup
from simshuffle.train.partition import Partition

_HEAD = 8
"""Bytes of width and height before the pixels of a decoded image."""


class _Tree(Dataset[bytes]):
    """The files of a tree as (class, content), numbered class by class in the order of names."""

    def __init__(self, root: Path, classes: list[str], files: list[tuple[int, str]]) -> None:
        self.root, self.classes, self.files = root, classes, files
        self.targets = np.array([number for number, _ in files], np.int64)

    def __len__(self) -> int:
        return len(self.files)

    def path(self, sample: int) -> Path:
        """Of a sample."""
        number, name = self.files[sample]
        return self.root / self.classes[number] / name

    def __getitem__(self, sample: int) -> bytes:
        return int(self.targets[sample]).to_bytes(4, "little") + self.path(sample).read_bytes()


class ImageFolder(ShardDataset):
    """Images in ``root``/CLASS/..., numbered class by class; classes are numbered by name. Items
    are (image, class number).

    The encoded files themselves are staged and exchanged, with four bytes for the class before
    them; an image is decoded, to RGB, and transformed when it is read. Rank 0 lists the tree for
    all. With an exchange whose payload is 'decoded', pixels travel, and the receiver stores them as
    PNG, which loses nothing.

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
        tree = _listed(Path(root), RankGroup.current())
        super().__init__(tree, storage, partition=partition, seed=seed)
        self._tree, self._of_image = tree, transform

    @property
    def classes(self) -> list[str]:
        """Names of the classes, by number."""
        return self._tree.classes

    def __getitem__(self, sample: int) -> Any:
        """(image, class number). Raises InputError if the sample is not staged on this rank, or its
        file is not an image."""
        content = self.store.get(int(sample)) if self.staged else self.read(int(sample))
        try:
            image = _decoded(content[4:])
        except UNREADABLE as error:
            name, remedy = str(self._tree.path(int(sample))), "Remove or repair the file."
            refuse(name, "must be an image", str(error), remedy, "dataset")
        label = int.from_bytes(content[:4], "little")
        return image if self._of_image is None else self._of_image(image), label

    def read(self, sample: int) -> bytes:
        """Class and content of a file."""
        return self._tree[sample]

    def nbytes(self, samples: Ints) -> list[int]:
        """The size of each file, and 4."""
        return [self._tree.path(int(sample)).stat().st_size + 4 for sample in samples]

    def to_payload(self, content: bytes, payload: Payload) -> bytes:
        """The file's bytes; or class, width, height and pixels, if they are sent 'decoded'."""
        if payload == "encoded":
            return content
        try:
            image = _decoded(content[4:])
        except UNREADABLE as error:
            rule, remedy = "must be readable to be sent decoded", "Use payload: encoded."
            refuse("image", rule, str(error), remedy, "dataset")
        size = [side.to_bytes(4, "little") for side in (image.width, image.height)]
        return b"".join([content[:4], *size, image.tobytes()])

    def from_payload(self, received: bytes, payload: Payload) -> bytes:
        """The file's bytes; of pixels a PNG."""
        if payload == "encoded":
            return received
        size = int.from_bytes(received[4:8], "little"), int.from_bytes(received[8:12], "little")
        room = io.BytesIO()
        Image.frombytes("RGB", size, received[4 + _HEAD :]).save(room, "PNG", compress_level=1)
        return received[:4] + room.getvalue()


def _decoded(content: bytes) -> Image.Image:
    with Image.open(io.BytesIO(content)) as image:
        return image.convert("RGB")


def _listed(root: Path, ranks: RankGroup) -> _Tree:
    """The tree as rank 0 sees it."""
    listing: dict[str, Any] = {}
    if ranks.rank == 0:
        try:
            listing = _listing(root)
        except OSError as error:
            listing = {"problem": str(error)}
    listing = json.loads(ranks.gather_texts(json.dumps(listing) if ranks.rank == 0 else "")[0])
    if "problem" in listing or not listing["files"]:
        shown = listing.get("problem", f"{root} without any")
        rule, remedy = "must hold images in a folder for each class", "Check the path."
        refuse("root", rule, shown, remedy, "dataset")
    return _Tree(root, listing["classes"], [(number, name) for number, name in listing["files"]])


def _listing(root: Path) -> dict[str, Any]:
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir())
    files = [
        (number, path.relative_to(folder).as_posix())
        for number, folder in enumerate(folders)
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in ENDINGS and path.is_file()
    ]
    return {"classes": [folder.name for folder in folders], "files": files}
