"""Decode Chakra's execution traces (MLCommons): their schema, and the nodes of a file.

Messages and field numbers are those of schema/protobuf/et_def.proto of
github.com/mlcommons/chakra, commit 6dc63e1, which has nodes of storage, batches and
checkpoints (its pull request 216); without these it is the same in f5124d7 and in
github.com/astra-sim/chakra. A file is a GlobalMetadata and then Nodes, each with its
length before it, as src/third_party/utils/protolib.py writes them. Of the protocol
buffers' wire format (protobuf.dev/programming-guides/encoding) that takes few kinds of
fields: a library would need the same table of numbers, and be one more thing to
install.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.records.files import LARGEST, read_unpacked

VERSION = "0.0.4"
"""Version of the schema that Chakra's own generator writes. Traces of its converters
may name none, and say as attribute `schema` which version of PyTorch's execution traces
they were made from (tests/data/feeder_tests_trace.tar.gz of mlcommons/chakra: 1.0.1);
their nodes are the same.
"""

COMP, SEND, RECV, COLL, STORAGE, BATCH, CHECKPOINT = 4, 5, 6, 7, 8, 9, 10
"""Values of NodeType."""
READS = (3, 5)
OPENS = (1,)
WRITES = (4, 6)
"""Values of FsOp.Op, the plain call first in each."""
FILE_SYSTEM = 1
"""A value of StorageLevel."""

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""
META_VERSION, META_ATTR = 1, 2
"""Fields of GlobalMetadata."""
ID, NAME, TYPE, CTRL_DEPS, DATA_DEPS, START, DURATION, ATTR, INFO = (
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    10,
    11,
)
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
_NUMBER_FIELDS = (
    INT32,
    INT64,
    11,
    13,
    BOOL,
)  # of AttributeProto, that hold a plain number


class StorageOperation(NamedTuple):
    """An operation of a file system that a node of storage does."""

    op: int  # a value of FsOp.Op
    nbytes: int  # bytes that it moves


@dataclass(frozen=True)
class ChakraNode:
    """An operation of a rank."""

    id: int  # from 1, in the order of the schedule
    name: str  # of the operation
    kind: int  # a value of NodeType
    dependencies: tuple[int, ...]  # ids of the nodes that must end before
    seconds: float  # its duration; 0 if a network decides that
    # plain numbers: bytes, ranks, ...
    attributes: dict[str, int] = field(default_factory=dict)
    storage: StorageOperation | None = None  # of a node of storage
    start_s: float = 0.0  # 0 if it is not known


def is_chakra(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` (unpacked, 64 bytes suffice) is a
    trace of Chakra.
    """
    return bool(_HEAD.match(head))


def read_nodes(path: Path) -> tuple[list[ChakraNode], str]:
    """Return the nodes of a trace, in its order, and a sentence on its version where it
    names none ('' where it names `VERSION`).

    Raises:
        InputError: the trace is not whole, or of another version of the schema; or it
            names none, and has a node of an unknown type.
    """
    source = str(path)
    content, is_cut = read_unpacked(path)
    try:
        messages = list(_split_messages(content))
        metadata = list(fields(messages[0]))
        nodes = [_decode_node(message) for message in messages[1:]]
        schema = _schema(metadata)
    except (ValueError, IndexError) as error:
        is_cut = is_cut or isinstance(error, IndexError)
        reason = "it ends too early" if is_cut else str(error)
        rule = f"must be a whole trace of Chakra: {reason}"
        refuse(
            "RECORD", rule, f"{len(content)} bytes", "Write or copy it again.", source
        )
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
    return (
        nodes,
        f"The trace names no version of Chakra's schema{schema}: it is read as {VERSION}.",
    )


def _schema(metadata: list[tuple[int, int | bytes]]) -> str:
    """Return the words on the attribute `schema` of a trace; '' if it has none. Raises
    a ValueError or IndexError if an attribute is no message.
    """
    attributes = [value for number, value in metadata if number == META_ATTR]
    for attribute in attributes:
        values = dict(fields(attribute)) if isinstance(attribute, bytes) else {}
        schema = values.get(STRING)
        if values.get(KEY) == b"schema" and isinstance(schema, bytes):
            return (
                f", but schema {schema.decode('utf-8', 'replace')[:20]} as an attribute"
            )
    return ""


def _split_messages(content: bytes) -> Iterator[bytes]:
    """Yield the messages of a file, each of which stands behind its length. Raises an
    IndexError if the last one is cut, a ValueError if a length is none.
    """
    offset = 0
    while offset < len(content):
        length, offset = _decode_varint(content, offset)
        if offset + length > len(content):
            raise IndexError
        yield content[offset : offset + length]
        offset += length


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and value of each field of a message: an int of a varint, bytes
    of the other wire types.

    Raises a ValueError or IndexError if the bytes are no message.
    """
    offset = 0
    while offset < len(message):
        key, offset = _decode_varint(message, offset)
        number = key >> 3
        wire_type = key & 7
        if wire_type == VARINT:
            value, offset = _decode_varint(message, offset)
            yield number, value
            continue
        if wire_type == BYTES:
            length, offset = _decode_varint(message, offset)
        else:
            length = {FIXED64: 8, FIXED32: 4}.get(wire_type, -1)
        if length < 0:
            raise ValueError(f"a field of wire type {wire_type}")
        if offset + length > len(message):
            raise IndexError
        yield number, message[offset : offset + length]
        offset += length


def _decode_varint(content: bytes, offset: int) -> tuple[int, int]:
    """Return the number at an offset, seven bits a byte, the lowest first; and the
    offset behind it. Raises an IndexError if it is cut, a ValueError if it is too long.
    """
    value = shift = 0
    while True:
        byte = content[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _check_number(value: int | bytes) -> int:
    """Return the value of a field that holds a number. Raises a ValueError if it is
    none, negative, or at least `LARGEST`.
    """
    if isinstance(value, bytes) or value >= LARGEST:
        raise ValueError("a number that is too large, or none")
    return value


def _decode_node(message: bytes) -> ChakraNode:
    """Return the node of a message; missing numbers are 0. Raises a ValueError or
    IndexError if it is none.
    """
    numbers = dict[int, int]()
    dependencies = list[int]()
    attributes = dict[str, int]()
    name = ""
    storage = None
    for number, value in fields(message):
        if number in {ID, TYPE, START, DURATION}:
            numbers[number] = _check_number(value)
        elif number in {CTRL_DEPS, DATA_DEPS}:
            dependencies += (
                [value] if isinstance(value, int) else _decode_varints(value)
            )
        elif isinstance(value, bytes):
            if number == NAME:
                name = value.decode("utf-8", "replace")
            elif number == INFO:
                storage = _decode_storage(value)
            elif number == ATTR:
                attributes |= _decode_attribute(value)
    return ChakraNode(
        id=numbers.get(ID, 0),
        name=name,
        kind=numbers.get(TYPE, 0),
        dependencies=tuple(dependencies),
        seconds=numbers.get(DURATION, 0) / 1e6,
        attributes=attributes,
        storage=storage,
        start_s=numbers.get(START, 0) / 1e6,
    )


def _decode_varints(content: bytes) -> list[int]:
    """Return the numbers of a packed field, which stand one after another."""
    numbers = list[int]()
    offset = 0
    while offset < len(content):
        value, offset = _decode_varint(content, offset)
        numbers.append(value)
    return numbers


def _decode_attribute(message: bytes) -> dict[str, int]:
    """Return the name and value of an attribute that is a plain number from 0 to
    `LARGEST`; {} if it is a text, a list, a fraction, negative or larger.
    """
    field_values = dict(fields(message))
    name = field_values.get(KEY)
    if not isinstance(name, bytes):
        return {}
    values = [
        field_values[number] for number in _NUMBER_FIELDS if number in field_values
    ]
    numbers = [value for value in values if isinstance(value, int) and value <= LARGEST]
    return {name.decode("utf-8", "replace"): value for value in numbers}


def _decode_storage(message: bytes) -> StorageOperation | None:
    """Return the operation of a StorageInfo; None if it is not of a file system. Raises
    a ValueError or IndexError if the bytes are no message.
    """
    operation = dict(fields(message)).get(FS)
    if not isinstance(operation, bytes):
        return None
    values = dict(fields(operation))
    return StorageOperation(
        _check_number(values.get(OP, 0)), _check_number(values.get(SIZE, 0))
    )
