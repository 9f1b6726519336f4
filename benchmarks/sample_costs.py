"""What the host pays for one exchanged sample, measured on this machine: the numbers behind the
fields of an exchange schedule.

    python benchmarks/sample_costs.py [FOLDER]

Writes and reads small files in FOLDER (default: a temporary folder), and prints the median over
many repetitions. Pillow comes with matplotlib. A photograph is imitated by smooth noise of 500 x
375 pixels, stored as JPEG of about 110 kB.
"""

from __future__ import annotations

import io
import pickle
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

REPEATS = 300


def median_seconds(action: Callable[[int], object], repeats: int = REPEATS) -> float:
    """Median duration of ``action(i)`` in s."""
    took = []
    for i in range(repeats):
        begin = time.perf_counter()
        action(i)
        took.append(time.perf_counter() - begin)
    return float(np.median(took))


def photograph() -> Image.Image:
    """500 x 375 pixels of smooth noise."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (94, 125, 3), np.uint8))
    return coarse.resize((500, 375), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, quality: int) -> bytes:
    """The image as JPEG."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def pickling(nbytes: int) -> float:
    """Median seconds to pickle the bytes of a file, which were not used just before."""
    files = [
        np.random.default_rng(i).bytes(nbytes) for i in range(min(REPEATS, 600_000_000 // nbytes))
    ]
    return median_seconds(
        lambda i: pickle.dumps({"sample": files[i]}, pickle.HIGHEST_PROTOCOL), len(files)
    )


def main(folder: Path) -> None:
    """Print one line for every cost."""
    image = photograph()
    quality = min(range(60, 100, 2), key=lambda q: abs(len(encoded(image, q)) - 110_000))
    data = encoded(image, quality)
    files = [folder / f"{i}.jpg" for i in range(REPEATS)]
    for path in files:
        path.write_bytes(data)
    pickled = pickle.dumps(
        {"idx": 1, "path": "x", "sample": image, "class_name": "n"}, pickle.HIGHEST_PROTOCOL
    )
    costs = {
        f"read: open, read and close a file of {len(data)} B (page cache)": median_seconds(
            lambda i: files[i].read_bytes()
        ),
        "decode: JPEG to RGB": median_seconds(
            lambda i: Image.open(io.BytesIO(data)).convert("RGB").load()
        ),
        f"pickle: {len(pickled)} B": median_seconds(
            lambda i: pickle.dumps({"sample": image}, pickle.HIGHEST_PROTOCOL)
        ),
        **{
            f"pickle: a file of {nbytes} B": pickling(nbytes)
            for nbytes in (len(data), 1 << 20, 60_100_000)
        },
        "zero_buffer: 4 MiB": median_seconds(lambda i: np.zeros(4 << 20, np.uint8).fill(0)),
        "encode: RGB to JPEG, quality 75": median_seconds(lambda i: encoded(image, 75)),
        "remove: one file": median_seconds(lambda i: files[i].unlink()),
    }
    for ranks in (128, 2048):
        state = np.random.RandomState(1)
        targets = list(range(ranks))
        seconds = median_seconds(lambda i, state=state, targets=targets: state.shuffle(targets))
        costs[f"draw: shuffle a list of {ranks} ranks, per rank"] = seconds / ranks
    for name, seconds in costs.items():
        print(f"{seconds * 1e6:10.3f} us  {name}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as name:
            main(Path(name))
