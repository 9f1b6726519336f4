"""Store: outcomes of cells by their digest, each complete or absent.

Outcomes are stored as JSON, Parquet and plain files, never as pickles. `run_and_store`
runs a cell and stores its outcome, or says why there is none.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simshuffle.errors import SimshuffleError
from simshuffle.study.cell import Cell, Outcome, Tell, digest_of
from simshuffle.study.long_table import (
    LazyTables,
    LongTable,
    TablePart,
    get_long,
    write_parquet,
)

TABLE = ".parquet"
CELLS = ".cells"
"""Folder of the outcomes of cells, beside the result folders that rest on them."""


@dataclass(frozen=True)
class Memory:
    """A store in memory, which ends with the process."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def has(self, digest: str, parts: frozenset[str]) -> bool:
        """Return whether there is an outcome; ``parts`` are not looked at."""
        return digest in self.outcomes

    def get(self, digest: str, parts: frozenset[str]) -> Outcome | None:
        """Return the outcome; None if it is missing. ``parts`` are not looked at."""
        return self.outcomes.get(digest)

    def add(self, digest: str, outcome: Outcome) -> None:
        """Store an outcome; a second one of an equal digest replaces the first."""
        self.outcomes[digest] = outcome

    def forget(self, digest: str) -> None:
        """Remove an outcome, if there is one."""
        self.outcomes.pop(digest, None)


@dataclass(frozen=True)
class Disk:
    """A folder of outcomes that outlives the process, and that several processes may
    use at once.

    ``ROOT/ab/abcd....json`` holds the values of an outcome, the SHA-256 of its tables
    and files, and its own SHA-256. The tables and files lie in the folder
    ``ROOT/ab/abcd....``. The JSON is written last, so all that it names exists.
    """

    root: Path

    def has(self, digest: str, parts: frozenset[str]) -> bool:
        """Return whether an outcome with those tables and files is noted.

        Only its JSON is read, and without ``parts`` not even that: `get` finds damage.
        """
        if not parts:
            return self._entry(digest).is_file()
        return (entry := self._read(digest)) is not None and parts <= set(
            entry["files"]
        )

    def get(self, digest: str, parts: frozenset[str]) -> Outcome | None:
        """Return the outcome with the tables and files ``parts``; tables are unloaded.

        None if it is missing, or if its values or one of ``parts`` are not as they were
        written. Other tables and files are left out. Files are paths in the store.
        Values are as JSON gives them back: tuples are lists, and keys texts.
        """
        entry = self._read(digest)
        if entry is None or not parts <= set(entry["files"]):
            return None
        folder = self._folder(digest)
        try:
            if any(_sha256(folder / name) != entry["files"][name] for name in parts):
                return None
        except OSError:
            return None
        names = sorted(parts)
        tables = {
            name.removesuffix(TABLE): LongTable((TablePart(folder / name),))
            for name in names
            if name.endswith(TABLE)
        }
        files = {name: folder / name for name in names if not name.endswith(TABLE)}
        return Outcome(entry["values"], LazyTables(tables), files)

    def add(self, digest: str, outcome: Outcome) -> None:
        """Store an outcome; a second one of an equal digest replaces the first.

        Files that are paths are linked where that is possible, so that nobody may
        change them afterwards. If another process stores tables and files at the same
        time, either's may stay.

        Raises:
            OSError: the folder cannot be written.
            TypeError: values are nothing that JSON holds.
        """
        entry = self._entry(digest)
        folder = self._folder(digest)
        entry.parent.mkdir(parents=True, exist_ok=True)
        files: dict[str, str] = {}
        if outcome.tables or outcome.files:
            draft = Path(tempfile.mkdtemp(dir=entry.parent, prefix=".part-"))
            try:
                for name in outcome.tables:
                    table = get_long(outcome.tables, name)
                    path = draft / f"{name}{TABLE}"
                    if table.file is None:
                        write_parquet(table.pieces(), path)
                    else:
                        write_file(table.file, path)
                for name, content in outcome.files.items():
                    write_file(content, draft / name)
                files = {path.name: _sha256(path) for path in sorted(draft.iterdir())}
                shutil.rmtree(folder, ignore_errors=True)
                # if another process has put the same outcome there meanwhile, that one stays
                with suppress(OSError):
                    draft.rename(folder)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        body = {"values": outcome.values, "files": files}
        text = json.dumps(body, separators=(",", ":"))
        draft_entry = entry.with_name(f".{entry.name}.part-{os.getpid()}")
        try:
            draft_entry.write_text(f"{_digest(text)}\n{text}\n", encoding="utf-8")
            draft_entry.replace(entry)
        finally:
            with suppress(OSError):
                draft_entry.unlink()

    def forget(self, digest: str) -> None:
        """Remove an outcome, if there is one."""
        self._entry(digest).unlink(missing_ok=True)
        shutil.rmtree(self._folder(digest), ignore_errors=True)

    def digests(self) -> Iterator[str]:
        """Yield the digests of all outcomes, sorted; none if there is no folder."""
        for group in sorted(self.root.glob("??")):
            yield from sorted(path.stem for path in group.glob("[!.]*.json"))

    def _entry(self, digest: str) -> Path:
        """Return the path of the JSON of an outcome."""
        return self.root / digest[:2] / f"{digest}.json"

    def _folder(self, digest: str) -> Path:
        """Return the folder of the tables and files of an outcome."""
        return self.root / digest[:2] / digest

    def _read(self, digest: str) -> Mapping[str, Any] | None:
        """Return an outcome's entry: its 'values', and SHA-256 by name of its 'files'.

        None if it is missing, or not as it was written.
        """
        try:
            first, _, text = (
                self._entry(digest).read_text(encoding="utf-8").partition("\n")
            )
            text = text.removesuffix("\n")
            entry: dict[str, Any] | None = (
                json.loads(text) if first == _digest(text) else None
            )
        except (OSError, ValueError):
            return None
        return entry


Store = Memory | Disk  # where outcomes are kept


def write_file(content: bytes | Path, path: Path) -> None:
    """Write ``path``: the bytes ``content``, or the content of another file.

    That file is linked where the file system has hard links, else copied. A linked file
    changes with the other one.
    """
    if isinstance(content, bytes):
        path.write_bytes(content)
        return
    try:
        os.link(content, path)
    except OSError:
        shutil.copyfile(content, path)


def _digest(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def _sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Lost:
    """The reason why a cell has no outcome."""

    cause: str  # a sentence for people
    # what the cell raised; None where it raised another kind of error, its process died, or it
    # could not be sent to one
    error: SimshuffleError | None = None


_store: ContextVar[Store | None] = ContextVar("where outcomes are kept", default=None)


def run_inner_cell(cell: Cell) -> Outcome:
    """Run a cell as a part of the running one, and return its outcome.

    It is kept in the store of the running cell, and read from there if it is stored: a
    search that was interrupted finds the simulations it has done. Outside of a running
    cell nothing is kept. A damaged outcome is computed again.

    Raises:
        SimshuffleError: the cell cannot be done; whatever else it raises passes, too.
    """
    store = _store.get()
    digest = digest_of(cell)
    outcome = None if store is None else store.get(digest, cell.parts)
    if outcome is None:
        outcome = cell.run(lambda share: None)
        if store is not None:
            store.add(digest, outcome)
    return outcome


def run_and_store(cell: Cell, digest: str, store: Store, tell: Tell) -> Lost | None:
    """Run a cell and store its outcome; return None, or why there is no outcome.

    The cell runs even if its outcome is stored already.

    Raises:
        OSError: the outcome cannot be written, or the cell raised it; other errors of a
            cell make it lost. KeyboardInterrupt passes.
    """
    token = _store.set(store)
    try:
        store.add(digest, cell.run(tell))
    except SimshuffleError as error:
        return Lost(str(error), error)
    except OSError:
        raise  # the disk is full, or the store cannot be written: no other cell would fare better
    except Exception as error:  # noqa: BLE001 - whatever a cell raises, the others go on
        return Lost(f"{type(error).__name__}: {error}")
    finally:
        _store.reset(token)
    return None
