"""Switches of kind: the values of a record when a dotted key gives it another kind."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from simshuffle.errors import Problem, SimshuffleWarning
from simshuffle.spec.library import shorten
from simshuffle.spec.overrides import (
    References,
    expand_name,
    keys_overlap,
    plain_copy,
    set_key,
    value_under,
)
from simshuffle.spec.record import Spec, records_in

KIND = "kind"


@dataclass
class KindSwitch:
    """The record of one switch: which values of a record were kept, renamed or dropped
    when its kind was replaced.
    """

    key: str  # dotted, of the record
    old_kind: str  # its kind
    new_kind: str
    # what the new kind calls each key of the old one; None where it has none
    new_names: dict[str, str | None]
    kept_keys: list[str] = field(default_factory=list)  # keys that both kinds have
    # what the new kind calls a key that was set, if otherwise than the old one
    renamed: dict[str, str] = field(default_factory=dict)
    # values that it has no place for
    dropped: dict[str, Any] = field(default_factory=dict)
    # what it needs and nobody set; `simshuffle.job.scenario.other_kinds.fill` adds it
    filled: dict[str, Any] = field(default_factory=dict)

    @property
    def note(self) -> Problem | None:
        """The note to the user about this switch; None if every value was kept under
        its name.
        """
        if not (self.renamed or self.dropped or self.filled):
            return None
        texts = {
            "dropped": _format_values(self.dropped),
            "kept": ", ".join(self.kept_keys),
            "called otherwise": ", ".join(
                f"{a} is now {b}" for a, b in self.renamed.items()
            ),
            "filled in": _format_values(self.filled),
        }
        summary = "; ".join(f"{name}: {text}" for name, text in texts.items() if text)
        rule = f"replaces the kind '{self.old_kind}' and its values ({summary})"
        return Problem(
            f"{self.key}.{KIND}",
            rule,
            repr(self.new_kind),
            "Set what is meant otherwise.",
        )


def list_notes(switches: Iterable[KindSwitch]) -> list[Problem]:
    """List the notes to the user about ``switches``; those that changed no value have
    none.
    """
    return [note for switch in switches if (note := switch.note) is not None]


def warn_of_switches(switches: Iterable[KindSwitch]) -> list[Problem]:
    """Warn the user of ``switches``, a SimshuffleWarning for each note, and return the
    notes of `list_notes`.
    """
    notes = list_notes(switches)
    for note in notes:
        warnings.warn(str(note), SimshuffleWarning, stacklevel=2)
    return notes


def _format_values(values: Mapping[str, Any]) -> str:
    """Format values by key, for a note."""
    return ", ".join(
        f"{key} = {'a mapping' if isinstance(value, dict) else shorten(str(value))}"
        for key, value in values.items()
    )


class PendingSwitches:
    """The records whose kind was replaced while keys were set, as they were before."""

    def __init__(self, root: type[BaseModel]) -> None:
        """Start without any; ``root`` is the record that the values are for."""
        self._root = root
        self._records: dict[str, dict[str, Any]] = {}

    def set_key(
        self,
        raw: dict[str, Any],
        key: str,
        value: Any,
        problems: list[Problem],
        references: References | None = None,
    ) -> bool:
        """Set a dotted key of ``raw``, as `simshuffle.spec.overrides.set_key` does; if
        that gives a record another kind, remember the record as it was.

        ``raw`` is changed in place. False, and a problem in ``problems``, if the key
        cannot be set.
        """
        for name in references or {}:
            if references and key.startswith(f"{name}."):
                expand_name(
                    raw, name, references, []
                )  # what is wrong is reported below
        record_key, _, last = key.rpartition(".")
        record = _value_at(raw, record_key) if record_key and last == KIND else None
        if isinstance(record, dict) and isinstance(value, str):
            kind = record.get(KIND)
            if isinstance(kind, str) and kind != value:
                self._records.setdefault(record_key, plain_copy(record))
        return set_key(raw, key, value, problems, references)

    def settle(
        self, raw: Mapping[str, Any], set_values: Mapping[str, Any]
    ) -> list[KindSwitch]:
        """Give every record of ``raw`` the keys of its new kind, after all values were
        set; and forget the pending switches.

        A key that means the same in the new kind is kept, or renamed
        (`Spec.meaning_of_key`). Others are dropped, and values that only the old kind
        took.

        Args:
            raw: the values; changed in place.
            set_values: the values that were set, by dotted key, which stay as they are.

        Returns:
            The switches, the outermost record first, without those to unknown kinds.
        """
        pending = sorted(self._records.items(), key=lambda item: item[0].count("."))
        self._records = {}
        switches = [
            _settle_record(raw, self._root, key, old_values, set_values)
            for key, old_values in pending
        ]
        return [switch for switch in switches if switch is not None]


def _settle_record(
    raw: Mapping[str, Any],
    root: type[BaseModel],
    key: str,
    old_values: dict[str, Any],
    set_values: Mapping[str, Any],
) -> KindSwitch | None:
    """Give one record of ``raw``, in place, the keys of its new kind; None if its kind
    is not known, which is refused elsewhere.
    """
    record = _value_at(raw, key)
    records = _kinds_at(root, raw, key)
    if not isinstance(record, dict) or str(record.get(KIND)) not in records:
        return None  # which is refused elsewhere
    old_record = records.get(old_values[KIND])
    new_record = records[record[KIND]]
    name_of_meaning = {
        meaning_of_key(new_record, name): name for name in new_record.model_fields
    }
    old_names = [
        *old_values,
        *(old_record.model_fields if old_record is not None else ()),
    ]
    new_names = {
        name: name_of_meaning.get(
            name if old_record is None else meaning_of_key(old_record, name)
        )
        for name in old_names
        if name != KIND
    }
    switch = KindSwitch(key, old_values[KIND], record[KIND], new_names)
    inherited_keys = [name for name in old_values if name in record and name != KIND]
    inherited_keys = [
        name
        for name in inherited_keys
        if not _is_set_directly(f"{key}.{name}", set_values)
    ]
    for name in inherited_keys:
        new_name = new_names[name]
        if new_name is None or (new_name != name and new_name in record):
            switch.dropped[name] = record.pop(name)
        elif new_name != name:
            switch.renamed[name] = new_name
            record[new_name] = record.pop(name)
    rejected = _rejected_keys(new_record, record) - (
        _rejected_keys(old_record, old_values) if old_record is not None else set()
    )
    for name in inherited_keys:
        if name in rejected and name in record:
            switch.dropped[name] = record.pop(name)
    switch.kept_keys = [name for name in inherited_keys if name in record]
    source = record.get("source")
    if (
        isinstance(source, dict) and "source" in inherited_keys
    ):  # where its numbers are from, by key
        name_changes = {**dict.fromkeys(switch.dropped), **switch.renamed}
        record["source"] = {
            new_name: text
            for key, text in source.items()
            if (new_name := name_changes.get(key, key)) is not None
        }
    return switch


def _is_set_directly(key: str, set_values: Mapping[str, Any]) -> bool:
    """Return True if a dotted key has its value from one of ``set_values``: not if that
    names a record which has the key.
    """
    return any(
        keys_overlap(key, name)
        and (not key.startswith(f"{name}.") or isinstance(value, dict))
        for name, value in set_values.items()
    )


def meaning_of_key(record: type[BaseModel], key: str) -> str:
    """Return the meaning of a key of a record, by `Spec.meaning_of_key`; the key itself
    for records that are no `Spec`.
    """
    return record.meaning_of_key(key) if issubclass(record, Spec) else key


def _value_at(raw: Any, key: str) -> Any:
    """Return the value at a dotted key; None if there is none."""
    for part in key.split("."):
        raw = value_under(raw, part)
    return raw


def _kinds_at(root: type[BaseModel], raw: Any, key: str) -> dict[str, type[BaseModel]]:
    """Map each kind to the record that may stand at a dotted key of ``raw``; {} where
    there is no choice.
    """
    records: list[type[BaseModel]] = [root]
    for part in key.split("."):
        if not part.isdigit():  # of a list, whose records are found already
            named_record = _index_by_kind(records).get(str(value_under(raw, KIND)))
            record = records[0] if len(records) == 1 else named_record
            if record is None or part not in record.model_fields:
                return {}
            records = records_in(record.model_fields[part].annotation, deep=True)
        raw = value_under(raw, part)
    return _index_by_kind(records)


def records_by_kind(union: Any) -> dict[str, type[BaseModel]]:
    """Map each kind of an annotated union to its record; records without a kind, and
    those in mappings and lists, are left out.
    """
    return _index_by_kind(records_in(union))


def _index_by_kind(records: list[type[BaseModel]]) -> dict[str, type[BaseModel]]:
    """Map each kind to the record that has it; records without a kind are left out."""
    return {
        str(kind): record
        for record in records
        if KIND in record.model_fields
        for kind in get_args(record.model_fields[KIND].annotation)
    }


def _rejected_keys(record: type[BaseModel], values: Mapping[str, Any]) -> set[Any]:
    """Return the outermost keys with a problem: whose values a record does not take,
    that it does not know, or that it needs and ``values`` lack.
    """
    try:
        record.model_validate(values)
    except ValidationError as error:
        return {detail["loc"][0] for detail in error.errors() if detail["loc"]}
    return set()
