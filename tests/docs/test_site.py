"""The documentation as a site: built as `make docs` does, without a warning, with every page, and
asking the network for nothing."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
OWN = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, and what was said while it was built."""
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed: pip install 'simshuffle[docs]'")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout + done.stderr


def pages():
    """The pages of the site, by the file that each is made from."""
    docs = ROOT / "docs"
    found = {path: path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    return found | {ROOT / name: uri for name, uri in OWN.items()}


def test_it_is_built_without_a_warning(site):
    said = site[1].splitlines()
    assert len(said) >= 2
    assert [line for line in said if not line.startswith("INFO ")] == []
    assert [line for line in said if "not included" in line or "contains" in line] == []


def test_make_docs_builds_it_so():
    makefile = (ROOT / "Makefile").read_text()
    assert "NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict\n" in makefile


def test_every_page_is_in_the_navigation(site):
    settings = re.sub(r"!!python/object/apply:\S+", "", (ROOT / "mkdocs.yml").read_text())
    named = set(re.findall(r"'([^']+\.md)'", repr(yaml.safe_load(settings)["nav"])))
    assert set(pages().values()) <= named
    home = (site[0] / "index.html").read_text()
    for uri in pages().values():
        page = site[0] / uri.replace(".md", ".html")
        assert page.is_file(), uri
    assert 'href="tutorial.html"' in home
    assert 'src="figures/strategies.png"' in home


class Requests(HTMLParser):
    """What a page makes a browser load by itself, and where its links lead."""

    def __init__(self):
        super().__init__()
        self.loaded, self.links = [], []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in {"script", "img", "iframe", "source", "video"} and given.get("src"):
            self.loaded.append(given["src"])
        if tag == "link" and given.get("href"):
            self.loaded.append(given["href"])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])


@pytest.fixture(scope="module")
def requests(site):
    out = {}
    for path in site[0].rglob("*.html"):
        parser = Requests()
        parser.feed(path.read_text())
        out[path] = parser
    return out


def test_nothing_is_loaded_from_the_network(site, requests):
    assert len(requests) > 80
    for path, parser in requests.items():
        assert len(parser.loaded) > 3
        assert [url for url in parser.loaded if re.match(r"(https?:)?//", url)] == [], path
    for style in site[0].rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", style.read_text()), style


def test_what_is_loaded_and_linked_to_is_there(site, requests):
    for path, parser in requests.items():
        if path.name == "404.html":  # whose paths are those of a server
            continue
        for url in (*parser.loaded, *parser.links):
            if "://" not in url and not url.startswith(("mailto:", "#", "data:")):
                target = (path.parent / url.partition("#")[0].partition("?")[0]).resolve()
                assert target.exists(), (path, url)
    api = site[0] / "source" / "simshuffle" / "api.py.html"
    assert "def" in api.read_text()
    assert "source/simshuffle/api.py.html" in requests[site[0] / "design.html"].links


def counts(html):
    """Tables, rows, items of lists and blocks of code."""
    return {tag: len(re.findall(f"<{tag}[ >]", html)) for tag in ("table", "tr", "li", "pre")}


@pytest.mark.parametrize("path", sorted(pages()), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_of_the_site_is_laid_out_as_elsewhere(site, path):
    """Python-Markdown sees lists and tables where CommonMark does, which other readers use."""
    html = (site[0] / pages()[path].replace(".md", ".html")).read_text()
    article = html[html.index("<article") : html.index("</article>")]
    wanted = MarkdownIt("commonmark").enable("table").render(path.read_text())
    assert counts(article) == counts(wanted)


def test_it_is_searched_from_disk(site):
    """Browsers refuse workers there, so the search runs in a frame: docs/iframe-worker.js."""
    api = pytest.importorskip("playwright.sync_api")
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed")
    asked = []
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = chromium.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site[0] / "reference" / "tables.html").as_uri())
        found = page.locator(".md-search-result__link")
        for _ in range(12):  # what is typed before the index is read is not looked for
            page.locator("input.md-search__input").fill("")
            page.locator("input.md-search__input").press_sequentially("open_rate")
            with suppress(api.TimeoutError):
                found.first.wait_for(state="attached", timeout=10_000)
                break
        links = found.evaluate_all("links => links.map(link => link.href)")
        chromium.close()
    assert any("scenario-keys.html" in link for link in links)
    assert [url for url in asked if not url.startswith(("file://", "data:", "about:"))] == []
