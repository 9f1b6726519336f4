"""A slow server: a folder over HTTP that takes its time. Only GET, only files, only this host.

    python benchmarks/slow_server.py FOLDER [--open-s S] [--read-s S] [--rate BYTES_PER_S]
                                     [--in-flight N] [--port PORT]

Each request waits as `Throttle` says, ``--open-s`` and ``--read-s`` together. The first line
that it prints is its address. It serves until it is interrupted or ended.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType

from throttle import Throttle, add_options

PATIENCE = 20.0
"""s until a silent connection is closed, and until the server must be gone."""


class Server(ThreadingHTTPServer):
    """Of the files of a folder."""

    daemon_threads = True  # a client that stays connected does not keep it alive
    request_queue_size = 128

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        super().__init__(("127.0.0.1", options.port), Request)
        self.folder = folder.resolve()
        self.latency_s = options.open_s + options.read_s
        self.throttle = Throttle(options.rate, options.in_flight)


class Request(BaseHTTPRequestHandler):
    """One connection: its requests, one after another."""

    protocol_version = "HTTP/1.1"  # connections are kept
    timeout = PATIENCE
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and content leave together
    server: Server

    def do_GET(self) -> None:
        path = (self.server.folder / self.path.lstrip("/")).resolve()
        if not (path.is_relative_to(self.server.folder) and path.is_file()):
            self.send_error(404)
            return
        content = path.read_bytes()
        self.server.throttle.wait(self.server.latency_s, len(content))
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def slow_server(folder: Path, *options: str) -> Iterator[str]:
    """The address of a slow server of its own process, until the block ends."""
    command = [sys.executable, __file__, str(folder), *options]
    process = subprocess.Popen(
        command,
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        if not address:
            raise RuntimeError(f"no slow server: {' '.join(command)}")
        yield address
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    add_options(parser)
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    options = parser.parse_args()
    with Server(options.folder, options) as server:

        def end(number: int, frame: FrameType | None) -> None:
            # shutdown waits for the loop that this thread is in
            threading.Thread(target=server.shutdown).start()

        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()
