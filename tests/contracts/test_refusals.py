"""What the command line refuses, by `tests/data/refusals.txt`: with exit status 2 and one message
that names the key or option, what is wrong with its value, and what to do; nothing is written."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.shared import HAS_EXTENSIONS

DATA = Path(__file__).parents[1] / "data"
REMEDY = re.compile(r"\. [A-Z].*|such as|Did you mean|--help|requires an argument")


class Refusal(NamedTuple):
    """A command, the files of its working directory, and what its message must say."""

    files: dict[str, str]
    command: str
    said: list[str]


def read_text(given: str | list[str]) -> str:
    """Return the text of a file, or that of a file of tests/data with one piece replaced."""
    if isinstance(given, str):
        return given
    base, old, new = given
    text = (DATA / base).read_text()
    assert old in text
    return text.replace(old, new, 1)


def read_refusals(path: Path) -> list[Refusal]:
    """Read lines `words -> said | said`, where `$ words` begins the commands of the lines below it
    and `< name "text"` or `< name ["file of tests/data", "old", "new"]` gives them a file. `{x*3}`
    stands for xxx."""
    refusals, begin, files = [], "", {}
    for line in path.read_text().splitlines():
        if line.startswith("$"):
            begin, files = line[2:], {}
        elif line.startswith("<"):
            name, text = line[2:].split(" ", 1)
            files = files | {name: read_text(json.loads(text))}
        elif line and not line.startswith("#"):
            words, said = line.split("-> ")
            refusals.append(Refusal(files, f"{begin} {words}".strip(), said.split(" | ")))
    return refusals


@pytest.mark.parametrize(
    "refusal",
    [refusal for path in sorted(DATA.glob("refusals*.txt")) for refusal in read_refusals(path)],
    ids=lambda r: r.command,
)
def test_it_is_refused_in_words(refusal, refused):
    command = re.sub(r"\{(.)\*(\d+)\}", lambda found: found[1] * int(found[2]), refusal.command)
    command = command.replace("{python}", sys.executable)
    words = shlex.split(command.replace("{data}", str(DATA)))
    try:
        message = " ".join(refused(words, refusal.files).split())
    except ModuleNotFoundError:  # a plugin that rests on an extension
        message = "No such command"
        assert not HAS_EXTENSIONS
    is_missing = "No such command" in message or "schema: must be one of" in message
    if not HAS_EXTENSIONS and is_missing:
        pytest.skip("a verb or schema of an extension, which `make core` leaves out")
    assert [said for said in refusal.said if said not in message] == [], message
    assert REMEDY.search(message), message
