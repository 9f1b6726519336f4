"""What mkdocs does beside its own: README.md is the home page, and files outside of docs/ to which
a page links are pages too."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from posixpath import relpath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
}
"""Files of the root that are pages under other names."""
LINK = re.compile(r"(\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s#]+)(#[^)\s]*)?\)")
LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".cff": "yaml",
    ".json": "json",
    ".sh": "bash",
}
ASIDE = "---\nsearch:\n  exclude: true\n---\n\n"
"""Before the source of a file: searching is for the pages that people wrote."""


def on_files(files: Any, config: Any) -> Any:
    """Add README.md and the other pages of the root, and the files that pages link to."""
    for name, uri in PAGES.items():
        files.append(
            File.generated(config, uri, content=(ROOT / name).read_text("utf-8"))
        )
    found = [ROOT / name for name in PAGES]
    found += [ROOT / "docs" / file.src_uri for file in files.documentation_pages()]
    left = [path for path in found if path.is_file()]
    seen = set()
    while left:
        path = left.pop()
        for target in map(_file, _linked(path)):
            uri = _uri(target)
            if uri.startswith("source/") and uri not in seen and target.is_file():
                seen.add(uri)
                files.append(File.generated(config, uri, content=_as_page(target)))
                left += [target] if target.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead the links of a page to the pages of the site; those to folders are text alone."""
    source = _source(page.file.src_uri)

    def mended(link: re.Match[str]) -> str:
        text = link[1]
        target = link[2]
        section = link[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return link[0]
        path = _file((source.parent / target).as_posix())
        if path.is_dir():
            return text[1:-1]
        folder = page.file.src_uri.rpartition("/")[0] or "."
        return f"{text}({relpath(_uri(path), folder)}{section})"

    fences = re.split(r"(^```.*?^```\n?)", markdown, flags=re.MULTILINE | re.DOTALL)
    text = "".join(
        part if part.startswith("```") else LINK.sub(mended, part) for part in fences
    )
    # pictures with a width, which Markdown does not have: README.md alone
    return text.replace('<img src="docs/', '<img src="')


def _linked(path: Path) -> list[str]:
    """The files to which a page links, as paths."""
    if path.suffix != ".md":
        return []
    targets = (match[2] for match in LINK.finditer(path.read_text("utf-8")))
    return [
        (path.parent / target).as_posix() for target in targets if "://" not in target
    ]


@cache
def _file(path: str) -> Path:
    return Path(path).resolve()


def _uri(path: Path) -> str:
    """Of the page, or of the picture, that a file of the repository is in the site."""
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    if name in PAGES:
        return PAGES[name]
    if name.startswith("docs/") and path.suffix != ".py":
        return name.removeprefix("docs/")
    return f"source/{name.removesuffix('.md')}.md"


def _source(uri: str) -> Path:
    """The file of the repository that a page of the site is."""
    if uri.startswith("source/"):
        path = ROOT / uri.removeprefix("source/").removesuffix(".md")
        return path if path.is_file() else path.with_name(f"{path.name}.md")
    named = {page: name for name, page in PAGES.items()}
    return ROOT / named.get(uri, f"docs/{uri}")


def _as_page(path: Path) -> str:
    """A file that is no page as one: a notebook as its cells, another one as code."""
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        return f"{ASIDE}{text}"
    if path.suffix == ".ipynb":
        return "\n\n".join(_cell(cell) for cell in json.loads(text)["cells"])
    name = path.relative_to(ROOT).as_posix()
    language = LANGUAGES.get(path.suffix, "text")
    return (
        f"{ASIDE}# {path.name}\n\n`{name}`\n\n````{language}\n{text.rstrip()}\n````\n"
    )


def _cell(cell: dict[str, Any]) -> str:
    text = "".join(cell["source"])
    return text if cell["cell_type"] == "markdown" else f"````python\n{text}\n````"
