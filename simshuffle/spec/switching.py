"""What becomes of a record's values when a dotted key gives it another kind."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from simshuffle.errors import Problem, SimshuffleWarning
from simshuffle.spec.library import shortened
from simshuffle.spec.overrides import References, expand, inside, plain_copy, put, related
from simshuffle.spec.record import Spec, records_in

KIND = "kind"


@dataclass
class KindSwitch:
    """What became of the values of a record whose kind was replaced."""

    key: str  # dotted, of the record
    before: str  # its kind
    after: str
    places: dict[str, str | None]  # what the new kind calls each key; None where it has none
    kept: list[str] = field(default_factory=list)  # keys that both kinds have
    renamed: dict[str, str] = field(default_factory=dict)  # what the new kind calls a key
    dropped: dict[str, Any] = field(default_factory=dict)  # values that it has no place for
    filled: dict[str, Any] = field(default_factory=dict)  # what it needs and nobody set

    @property
    def note(self) -> Problem | None:
        """What is to be said of it; None if every value was kept under its name."""
        if not (self.renamed or self.dropped or self.filled):
            return None
        parts = {
            "dropped": _listed(self.dropped),
            "kept": ", ".join(self.kept),
            "called otherwise": ", ".join(f"{a} is now {b}" for a, b in self.renamed.items()),
            "filled in": _listed(self.filled),
        }
        told = "; ".join(f"{name}: {text}" for name, text in parts.items() if text)
        rule = f"replaces the kind '{self.before}' and its values ({told})"
        return Problem(f"{self.key}.{KIND}", rule, repr(self.after), "Set what is meant otherwise.")


def told(switches: Iterable[KindSwitch]) -> list[Problem]:
    """What is to be said of them."""
    return [note for switch in switches if (note := switch.note) is not None]


def warn(switches: Iterable[KindSwitch]) -> list[Problem]:
    """Say what is to be said of them, which is returned."""
    notes = told(switches)
    for note in notes:
        warnings.warn(str(note), SimshuffleWarning, stacklevel=2)
    return notes


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key} = {'a mapping' if isinstance(value, dict) else shortened(str(value))}"
        for key, value in values.items()
    )


class Left:
    """The records that other kinds are set for, as they were before."""

    def __init__(self, root: type[BaseModel]) -> None:
        """``root`` is the record that the values are for."""
        self._root = root
        self._records: dict[str, dict[str, Any]] = {}

    def put(
        self,
        raw: dict[str, Any],
        key: str,
        value: Any,
        problems: list[Problem],
        references: References | None = None,
    ) -> bool:
        """Set a dotted key of ``raw``, as `simshuffle.spec.overrides.put` does, and note the record
        whose kind it is."""
        for name in references or {}:
            if references and key.startswith(f"{name}."):
                expand(raw, name, references, [])  # what is wrong is reported below
        of, _, last = key.rpartition(".")
        record = _at(raw, of) if of and last == KIND else None
        if isinstance(record, dict) and isinstance(value, str):
            kind = record.get(KIND)
            if isinstance(kind, str) and kind != value:
                self._records.setdefault(of, plain_copy(record))
        return put(raw, key, value, problems, references)

    def settle(self, raw: Mapping[str, Any], own: Mapping[str, Any]) -> list[KindSwitch]:
        """Give every record of ``raw`` the keys of its new kind, after all values ``own``, by
        dotted key, were set, which stay as they are. A key that means the same there is kept, or
        renamed (`Spec.meaning`). Others are dropped, and values that only the kind before took.
        Returns what became of each, the outermost first; and forgets them."""
        noted = sorted(self._records.items(), key=lambda item: item[0].count("."))
        self._records = {}
        found = [_settled(raw, self._root, key, before, own) for key, before in noted]
        return [each for each in found if each is not None]


def _settled(
    raw: Mapping[str, Any],
    root: type[BaseModel],
    key: str,
    before: dict[str, Any],
    own: Mapping[str, Any],
) -> KindSwitch | None:
    record = _at(raw, key)
    known = _kinds_at(root, raw, key)
    if not isinstance(record, dict) or str(record.get(KIND)) not in known:
        return None  # which is refused elsewhere
    old, new = known.get(before[KIND]), known[record[KIND]]
    called = {meaning(new, name): name for name in new.model_fields}
    names = [*before, *(old.model_fields if old is not None else ())]
    places = {n: called.get(n if old is None else meaning(old, n)) for n in names if n != KIND}
    out = KindSwitch(key, before[KIND], record[KIND], places)
    ours = [name for name in before if name in record and name != KIND]
    ours = [name for name in ours if not _is_own(f"{key}.{name}", own)]
    for name in ours:
        now = places[name]
        if now is None or (now != name and now in record):
            out.dropped[name] = record.pop(name)
        elif now != name:
            out.renamed[name] = now
            record[now] = record.pop(name)
    unfit = _refused(new, record) - (_refused(old, before) if old is not None else set())
    for name in ours:
        if name in unfit and name in record:
            out.dropped[name] = record.pop(name)
    out.kept = [name for name in ours if name in record]
    source = record.get("source")
    if isinstance(source, dict) and "source" in ours:  # where its numbers are from, by key
        moved = {**dict.fromkeys(out.dropped), **out.renamed}
        record["source"] = {
            now: text for key, text in source.items() if (now := moved.get(key, key)) is not None
        }
    return out


def _is_own(key: str, own: Mapping[str, Any]) -> bool:
    """Whether a dotted key has its value from one of ``own``: not if that names a record which has
    it."""
    return any(
        related(key, name) and (not key.startswith(f"{name}.") or isinstance(value, dict))
        for name, value in own.items()
    )


def meaning(record: type[BaseModel], key: str) -> str:
    """What a key of a record means: see `Spec.meaning`."""
    return record.meaning(key) if issubclass(record, Spec) else key


def _at(raw: Any, key: str) -> Any:
    for part in key.split("."):
        raw = inside(raw, part)
    return raw


def _kinds_at(root: type[BaseModel], raw: Any, key: str) -> dict[str, type[BaseModel]]:
    """The records that may stand at a dotted key of ``raw``, by kind; {} where there is no
    choice."""
    found: list[type[BaseModel]] = [root]
    for part in key.split("."):
        if not part.isdigit():  # of a list, whose records are found already
            named = _by_kind(found).get(str(inside(raw, KIND)))
            of = found[0] if len(found) == 1 else named
            if of is None or part not in of.model_fields:
                return {}
            found = records_in(of.model_fields[part].annotation, deep=True)
        raw = inside(raw, part)
    return _by_kind(found)


def kinds(union: Any) -> dict[str, type[BaseModel]]:
    """The record of each kind of an annotated union."""
    return _by_kind(records_in(union))


def _by_kind(records: list[type[BaseModel]]) -> dict[str, type[BaseModel]]:
    return {
        str(kind): record
        for record in records
        if KIND in record.model_fields
        for kind in get_args(record.model_fields[KIND].annotation)
    }


def _refused(record: type[BaseModel], values: Mapping[str, Any]) -> set[Any]:
    """The keys whose values a record does not take."""
    try:
        record.model_validate(values)
    except ValidationError as error:
        return {detail["loc"][0] for detail in error.errors() if detail["loc"]}
    return set()
