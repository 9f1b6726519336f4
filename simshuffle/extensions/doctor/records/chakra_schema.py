"""The schema of Chakra's execution traces (MLCommons), and the nodes of a file.

Messages and field numbers are those of schema/protobuf/et_def.proto of github.com/mlcommons/chakra,
commit 6dc63e1, which has nodes of storage, batches and checkpoints (its pull request 216); without
these it is the same in f5124d7 and in github.com/astra-sim/chakra. A file is a GlobalMetadata and
then Nodes, each with its length before it, as src/third_party/utils/protolib.py writes them. Of the
protocol buffers' wire format (protobuf.dev/programming-guides/encoding) that takes few kinds of
fields: a library would need the same table of numbers, and be one more thing to install.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.records.files import LARGEST, unpacked

VERSION = "0.0.4"
"""Of the schema: what Chakra's own generator writes. Traces of its converters may name none, and
say as attribute `schema` which version of PyTorch's execution traces they were made from
(tests/data/feeder_tests_trace.tar.gz of mlcommons/chakra: 1.0.1); their nodes are the same."""

COMP, SEND, RECV, COLL, STORAGE, BATCH, CHECKPOINT = 4, 5, 6, 7, 8, 9, 10
"""Values of NodeType."""
READS, OPENS, WRITES = (3, 5), (1,), (4, 6)
"""Values of FsOp.Op: each the plain call first."""
FILE_SYSTEM = 1
"""A value of StorageLevel."""

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""
META_VERSION, META_ATTR = 1, 2
"""Fields of GlobalMetadata."""
ID, NAME, TYPE, CTRL_DEPS, DATA_DEPS, START, DURATION, ATTR, INFO = 1, 2, 3, 4, 5, 6, 7, 10, 11
"""Fields of Node; INFO is a StorageInfo."""
KEY, INT32, INT64, BOOL, STRING = 1, 7, 9, 27, 29
"""Fields of AttributeProto."""
LEVEL, FS = 1, 10
"""Fields of StorageInfo; FS is a FsOp."""
OP, SIZE = 1, 5
"""Fields of FsOp."""

_LENGTH = rb"[\x80-\xff]{0,4}[\x03-\x7f]"
_HEAD = re.compile(
    rb"\A(?:%(length)s\x0a[\x03-\x10]\d+\.\d+"  # a version
    rb"|%(length)s\x12%(length)s\x0a[\x01-\x40][A-Za-z_]\w*"  # an attribute alone
    rb"|\x00%(length)s\x08[\x80-\xff]{0,9}[\x00-\x7f]\x12[\x01-\x7f][\x20-\x7e])"  # nothing
    % {b"length": _LENGTH},
    re.DOTALL,
)
_KINDS = range(CHECKPOINT + 1)
_NUMBERS = (INT32, INT64, 11, 13, BOOL)  # of AttributeProto, those that hold a plain number


class StorageOperation(NamedTuple):
    """What a node of storage does, at the level of a file system."""

    op: int  # a value of FsOp.Op
    nbytes: int


@dataclass(frozen=True)
class ChakraNode:
    """What a rank does."""

    id: int  # from 1, in the order of the schedule
    name: str  # what it is
    kind: int  # a value of NodeType
    after: tuple[int, ...]  # ids of what must be done before
    seconds: float  # how long it takes; 0 for what a network decides
    attributes: dict[str, int] = field(default_factory=dict)  # bytes, ranks, ... that are told
    storage: StorageOperation | None = None
    start_s: float = 0.0  # 0 if it is not told


def is_chakra(head: bytes) -> bool:
    """Whether a file that begins so is a trace of Chakra."""
    return bool(_HEAD.match(head))


def read_nodes(path: Path) -> tuple[list[ChakraNode], str]:
    """Return the nodes of a trace, in its order, and a sentence on its version where it names none.

    Raises:
        InputError: the trace is not whole, or of another version of the schema.
    """
    source = str(path)
    content, cut = unpacked(path)
    try:
        messages = list(_messages(content))
        metadata = list(fields(messages[0]))
        nodes = [_node(message) for message in messages[1:]]
    except (ValueError, IndexError) as error:
        why = "it ends too early" if cut or isinstance(error, IndexError) else str(error)
        rule, value = f"must be a whole trace of Chakra: {why}", f"{len(content)} bytes"
        refuse("RECORD", rule, value, "Write or copy it again.", source)
    version = dict(metadata).get(META_VERSION) or None
    if version not in (None, VERSION.encode()):
        remedy = "Convert it with Chakra's converter for that schema."
        refuse("version", f"must be {VERSION}", repr(version)[:40], remedy, source)
    if version is not None:
        return nodes, ""
    if alien := [node for node in nodes if node.kind not in _KINDS]:
        rule = f"must name the version of its schema, as its nodes are not those of {VERSION}"
        remedy = f"Convert it with Chakra's converter, which writes {VERSION}."
        refuse("version", rule, f"a node of type {alien[0].kind}", remedy, source)
    return nodes, f"It names no version of Chakra's schema{_schema(metadata)}: read as {VERSION}."


def _schema(metadata: list[tuple[int, int | bytes]]) -> str:
    """What the attribute `schema` of a trace says; '' if there is none."""
    attributes = [value for number, value in metadata if number == META_ATTR]
    for attribute in attributes:
        found = dict(fields(attribute)) if isinstance(attribute, bytes) else {}
        schema = found.get(STRING)
        if found.get(KEY) == b"schema" and isinstance(schema, bytes):
            return f", but schema {schema.decode('utf-8', 'replace')[:20]} as an attribute"
    return ""


def _messages(content: bytes) -> Iterator[bytes]:
    """The messages of a file, each after its length."""
    at = 0
    while at < len(content):
        length, at = _varint(content, at)
        if at + length > len(content):
            raise IndexError
        yield content[at : at + length]
        at += length


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a message. Raises a ValueError or IndexError if it is
    none."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == BYTES:
            length, at = _varint(message, at)
        else:
            length = {FIXED64: 8, FIXED32: 4}.get(wire, -1)
        if length < 0:
            raise ValueError(f"a field of wire type {wire}")
        if at + length > len(message):
            raise IndexError
        yield number, message[at : at + length]
        at += length


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number, seven bits a byte, the lowest first; and where it ends."""
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _number(value: int | bytes) -> int:
    """A value of a field that holds a number."""
    if isinstance(value, bytes) or value >= LARGEST:
        raise ValueError("a number that is too large, or none")
    return value


def _node(message: bytes) -> ChakraNode:
    plain, deps, attributes = dict[int, int](), list[int](), dict[str, int]()
    name, storage = "", None
    for number, value in fields(message):
        if number in {ID, TYPE, START, DURATION}:
            plain[number] = _number(value)
        elif number in {CTRL_DEPS, DATA_DEPS}:
            deps += [value] if isinstance(value, int) else _packed(value)
        elif isinstance(value, bytes):
            if number == NAME:
                name = value.decode("utf-8", "replace")
            elif number == INFO:
                storage = _storage(value)
            elif number == ATTR:
                attributes |= _attribute(value)
    return ChakraNode(
        plain.get(ID, 0),
        name,
        plain.get(TYPE, 0),
        tuple(deps),
        plain.get(DURATION, 0) / 1e6,
        attributes,
        storage,
        plain.get(START, 0) / 1e6,
    )


def _packed(content: bytes) -> list[int]:
    """Packed numbers."""
    out, at = list[int](), 0
    while at < len(content):
        value, at = _varint(content, at)
        out.append(value)
    return out


def _attribute(message: bytes) -> dict[str, int]:
    """Name and value of an attribute that is a plain number; nothing if it is not."""
    found = dict(fields(message))
    name = found.get(KEY)
    if not isinstance(name, bytes):
        return {}
    values = [found[number] for number in _NUMBERS if number in found]
    known = [value for value in values if isinstance(value, int) and value <= LARGEST]
    return {name.decode("utf-8", "replace"): value for value in known}


def _storage(message: bytes) -> StorageOperation | None:
    """What a StorageInfo says of a file system; None if it is of another level."""
    found = dict(fields(message)).get(FS)
    if not isinstance(found, bytes):
        return None
    of = dict(fields(found))
    return StorageOperation(_number(of.get(OP, 0)), _number(of.get(SIZE, 0)))
