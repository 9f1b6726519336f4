"""Perfetto's page in a browser without network, asked by SQL."""

import functools
import http.server
import shutil
import tempfile
import threading
from pathlib import Path

ROWS = """async (sql) => {
    const found = await app.trace.engine.query(sql), out = [];
    for (const row = found.iter({}); row.valid(); row.next())
        out.push(Object.fromEntries(found.columns().map((name) => {
            const value = row.get(name);
            return [name, typeof value === 'bigint' ? Number(value) : value];
        })));
    return out;
}"""
LOADED = "() => { try { return !!app.trace.engine } catch (error) { return false } }"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def query(page, trace, questions):
    """The rows that answer each question.

    Args:
        page: folder of Perfetto's page.
        trace: bytes of a file.
        questions: SQL.
    """
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as room:
        shutil.copytree(page, Path(room) / "page")
        (Path(room) / "page" / "t.json").write_bytes(trace)
        handler = functools.partial(Quiet, directory=Path(room) / "page")
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        at = f"http://127.0.0.1:{server.server_port}"
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=shutil.which("chromium"), args=["--no-sandbox"]
                )
                tab = browser.new_page()
                tab.goto(f"{at}/index.html#!/?url={at}/t.json")
                tab.wait_for_function(LOADED, timeout=60_000)
                return [tab.evaluate(ROWS, question) for question in questions]
        finally:
            server.shutdown()
            server.server_close()
