"""Kinds of data that come in streams: shards of an iterable set, and a store behind a socket."""

from __future__ import annotations

from benchmarks.doctor_cases.kinds import LABELS, NUMPY, prepare
from benchmarks.doctor_cases.recipe import Recipe

STORE = """
import socketserver
import struct
import threading
import time
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parent
FEATURES = np.load(FOLDER / "features.npy")
LINK = threading.Lock()


class Answer(socketserver.BaseRequestHandler):
    def read(self, nbytes):
        blocks = b""
        while len(blocks) < nbytes:
            block = self.request.recv(nbytes - len(blocks))
            if not block:
                raise ConnectionError
            blocks += block
        return blocks

    def handle(self):
        try:
            while True:
                count, width = struct.unpack("<II", self.read(8))
                rows = FEATURES[np.frombuffer(self.read(4 * count), np.uint32)]
                time.sleep({delay})
                kind = np.uint8 if width == 1 else np.float64
                payload = (rows * 255 if width == 1 else rows).astype(kind).tobytes()
                with LINK:
                    time.sleep(len(payload) / {rate})
                self.request.sendall(payload)
        except ConnectionError:
            return


class Store(socketserver.ThreadingTCPServer):
    daemon_threads = True


server = Store(("127.0.0.1", 0), Answer)
(FOLDER / "port").write_text(str(server.server_address[1]))
server.serve_forever()
"""
CLIENT = """
    def fetch(self, indices):
        if self.connection is None:
            port = int((FOLDER / "port").read_text())
            self.connection = socket.create_connection(("127.0.0.1", port))
        keys = np.array(indices, np.uint32).tobytes()
        self.connection.sendall(struct.pack("<II", len(indices), {width}) + keys)
        wanted, blocks = len(indices) * 256 * {width}, []
        while wanted:
            blocks.append(self.connection.recv(wanted)){guilty}
            wanted -= len(blocks[-1])
        rows = np.frombuffer(b"".join(blocks), {kind}).reshape(-1, 256)
        return rows.astype(np.float32){scale}
"""
BATCH_READ = """
    def __getitems__(self, indices):
        rows = self.fetch(indices)
        return [
            (torch.as_tensor(row), int(self.labels[index]))
            for row, index in zip(rows, indices, strict=True)
        ]
"""


def remote(recipe: Recipe) -> None:
    """Rows of a store that answers after ``delay_us`` and sends ``rate_kb`` kB/s in all.

    ``single`` asks for each sample alone, ``wide`` for 8 bytes a number in place of one.
    """
    options = recipe.options
    prepare(recipe, 'np.save(FOLDER / "features.npy", features)\n')
    delay, rate = (
        options.get("delay_us", 100) / 1e6,
        options.get("rate_kb", 500_000) * 1e3,
    )
    recipe.store = (
        STORE.replace("{delay}", str(delay)).replace("{rate}", str(rate)).lstrip()
    )
    recipe.imports |= {*NUMPY, "import socket", "import struct"}
    recipe.init = LABELS + "self.connection = None"
    wide, single = options.get("wide"), options.get("single")
    cause = "latency" if single else "bandwidth" if wide else ""
    client = CLIENT.format(
        width=8 if wide else 1,
        kind="np.float64" if wide else "np.uint8",
        scale="" if wide else " / 255",
        guilty=f"  #! {cause}" if cause else "",
    )
    recipe.batch_read = client if single else client + BATCH_READ
    call = "(row,) = self.fetch([index])" + ("  #! latency" if single else "")
    if wide:
        recipe.batch_read = recipe.batch_read.replace(
            "rows = self.fetch(indices)", "rows = self.fetch(indices)  #! bandwidth"
        )
    recipe.read = f"{call}\nx = row\nlabel = int(self.labels[index])"


def shards(recipe: Recipe) -> None:
    """Shards of one batch each, or ``long`` ones that cost ``passes`` checks a batch; shards of
    the first worker lie on a slow path with ``slow_us``."""
    setting, options = recipe.setting, recipe.options
    many, passes = options.get("shard_batches", 4), options.get("passes", 0)
    prepare(
        recipe,
        f"""
        for name, batches in (("large", {many}), ("small", 1), ("nas", 1)):
            (FOLDER / name).mkdir()
            rows = batches * {setting.batch}
            for number in range(samples // rows):
                part = slice(number * rows, (number + 1) * rows)
                np.savez(FOLDER / name / f"{{number:04}}.npz", x=features[part], y=labels[part])
        """,
    )
    recipe.imports |= NUMPY
    name = "large" if options.get("long") else "small"
    recipe.init = f'self.paths = sorted((FOLDER / "{name}").glob("*.npz"))'
    begin = (
        "def read_shard(path):\n    with np.load(path) as shard:\n"
        '        features, labels = shard["x"], shard["y"]\n'
    )
    end = "    return features, labels"
    check = ""
    cause = ""
    if passes:
        cause = "  #! loader dips" if options.get("long") else ""
        recipe.imports.add("import zlib")
        check = f"    for _ in range({passes}):\n        zlib.compress(features, 6){cause}\n"
    if options.get("slow_us"):
        cause = "  #! slow worker"
        recipe.imports.add("import time")
        recipe.init += (
            f"\nfor number in range(0, len(self.paths), {setting.workers}):\n"
            '    self.paths[number] = FOLDER / "nas" / self.paths[number].name'
        )
        begin = begin.replace(
            ":\n",
            f':\n    if path.parent.name == "nas":\n'
            f"        time.sleep({options['slow_us'] / 1e6}){cause}\n",
            1,
        )
    recipe.helpers.append(begin + check + end)
    recipe.rows = f"""
    features, labels = read_shard(path){cause}
    for x, label in zip(features, labels, strict=True):
    """
