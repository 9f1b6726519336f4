"""What nodes of InfiniBand are called: by their descriptions, or by a node-name map, as opensm and
the tools of infiniband-diags read it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from simshuffle.fabrics.imported import plain_guid, read_text, refuse

_ADAPTER = re.compile(
    r"(\S+)\s+((?:mlx|hfi|qib|mthca|ib|roce|ocrdma|bnxt|hca)[\w-]*)", re.IGNORECASE
)
_GUID = re.compile(r"0[xX][0-9a-fA-F]{1,16}|[0-9a-fA-F]{16}")


def host_name(label: str) -> str:
    """The host that a description names; '' if none."""
    found = _ADAPTER.fullmatch(label)
    name = found[1] if found else label
    return name if re.fullmatch(r"[^\s>#]+", name) else ""


def adapter_name(label: str) -> str:
    """The adapter that a description names beside its host; '' if none."""
    found = _ADAPTER.fullmatch(label)
    return found[2] if found else ""


def switch_name(label: str) -> str:
    """A switch's name: of 'MF0;ib5:SX6036/U1' 'ib5', of a director's part 'MF0;d:CS7500/L01/U1'
    'd/L01/U1'."""
    found = re.fullmatch(r"MF0;([^:;]+):[^/]+(/.*)?", label)
    if not found:
        return label
    part = found[2] or ""
    return found[1] if part in {"", "/U1"} else found[1] + part


def begins(text: str) -> bool:
    """Whether a text may be a node-name map: pairs of words, and some of the first are GUIDs."""
    pairs = [words for line in text.splitlines()[:2000] if (words := _words(line))]
    return all(len(words) == 2 for words in pairs) and any(_GUID.fullmatch(a) for a, *_ in pairs)


def read_names(path: Path) -> dict[str, str]:
    """The names of a node-name map: by GUID, as `plain_guid` writes it, or by what an adapter, its
    host or a switch is called in the dump.

    Raises:
        TopologyError: a line is none of a map, or names something twice.
    """
    names: dict[str, str] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not (words := _words(line)):
            continue
        if len(words) != 2:
            rule = "must be a GUID, or the name of an adapter in the dump, and a name in quotes"
            found, remedy = repr(line.strip()[:60]), 'Write for example 0xe09d730300000010 "node1".'
            raise refuse(str(path), number, rule, found, remedy)
        key, name = words
        if _GUID.fullmatch(key):
            key = plain_guid(key.lower().removeprefix("0x"))
        if names.setdefault(key, name) != name:
            rule, remedy = "must name every node once", "Leave one of the two out."
            raise refuse(str(path), number, rule, f"{words[0]} again", remedy)
    if not names:
        rule, remedy = "must hold names", 'Write a line for each node: 0xGUID "name".'
        raise refuse(str(path), 0, rule, "none", remedy)
    return names


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quote without end
        return [line]


def name_of(
    names: Mapping[str, str], label: str, guids: Iterable[str], *, switch: bool
) -> str | None:
    """The description of a node by a map; None where no line is about it. Adapters that only the
    dump tells apart keep their names behind that of the host.

    Args:
        names: as `read_names` gives them.
        label: its description in the dump.
        guids: its own, and those of its ports.
        switch: whether it is one, and no adapter.
    """
    called = switch_name(label) if switch else host_name(label)
    found = next((names[key] for key in (*guids, label, called) if key and key in names), None)
    if found is None or switch:
        return found
    adapter, found = adapter_name(label), found.strip()
    if adapter_name(found):
        return found
    found = re.sub(r"[\s>#]+", "_", found)
    return f"{found} {adapter}" if adapter else found
