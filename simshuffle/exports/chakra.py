"""Execution traces of Chakra (MLCommons), which ASTRA-sim reads: a file of nodes for each rank.

Messages and field numbers are those of schema/protobuf/et_def.proto of github.com/mlcommons/chakra,
commit 6dc63e1 (they are the same in f5124d7, and in the schema of github.com/astra-sim/chakra).
Types of attributes are those that its older feeder needs (src/feeder/et_feeder_node.cpp, commit
02da5d0), and the newer one converts. A file is a GlobalMetadata and then Nodes, each with its
length before it, as src/third_party/utils/protolib.py writes them. Of the protocol buffers' wire
format (protobuf.dev/programming-guides/encoding) that takes two kinds of fields, written here: a
library would need the same table of numbers, and be one more thing to install.

What ASTRA-sim makes of a node is in its astra-sim/workload/Workload.cc, commit 0383c20. For it

- a barrier is an allreduce of one byte: it refuses the schema's BARRIER;
- the host's reading, working and storing are compute nodes of the CPU with a duration: a node of
  memory ends it unless a remote memory is described, one of storage always;
- all dependencies are data_deps: its older feeder does not look at ctrl_deps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simshuffle.exports.program import Program, Tell

VERSION = "0.0.4"
"""Of the schema: what Chakra's own generator writes."""
STEM = "exchange"
"""What the names of the files begin with."""

COMP, SEND, RECV, COLL = 4, 5, 6, 7
"""Values of NodeType."""
_ALL_REDUCE = 0  # a value of CollectiveCommType

_VARINT, _BYTES = 0, 2  # wire types
_VERSION = 1  # field of GlobalMetadata
_ID, _NAME, _TYPE, _DATA_DEPS, _DURATION, _ATTR = 1, 2, 3, 5, 7, 10  # fields of Node
_KEY, _INT32, _INT64, _BOOL = 1, 7, 9, 27  # fields of AttributeProto
_TYPES = {
    "is_cpu_op": _BOOL,
    "comm_type": _INT64,
    "comm_size": _INT64,
    "comm_src": _INT32,
    "comm_dst": _INT32,
    "comm_tag": _INT32,
}


@dataclass(frozen=True)
class Node:
    """What a rank does."""

    id: int  # from 1, in the order of the schedule
    name: str  # what it is
    kind: int  # `COMP`, `SEND`, `RECV` or `COLL`
    after: tuple[int, ...]  # ids of what must be done before
    seconds: float  # how long it takes; 0 for what a network decides
    attributes: dict[str, int]  # those that ASTRA-sim asks for: bytes, ranks, ...


def write(made: Program, path: Path, tell: Tell) -> list[str]:
    """Write the traces of an iteration to a new folder ``path``."""
    path.mkdir()
    count = 0
    for rank in range(made.world_size):
        nodes = nodes_of(made, rank)
        (path / f"{STEM}.{rank}.et").write_bytes(encoded(nodes))
        count += len(nodes)
        tell((rank + 1) / made.world_size)
    return [
        f"Iteration {made.iteration} of epoch {made.epoch}: {count} nodes of {made.world_size}"
        " ranks.",
        f"ASTRA-sim takes it as --workload-configuration={path.name}/{STEM}",
    ]


def nodes_of(made: Program, rank: int) -> list[Node]:
    """What a rank does in an iteration, in the order of the schedule. Where messages are waited for
    after the next backward pass, that pass is here too, and takes the time of this iteration's."""
    nodes: list[Node] = []

    def add(
        name: str, kind: int, after: Sequence[int], seconds: float = 0.0, cpu: int = 0, **about: int
    ) -> int:
        about["is_cpu_op"] = cpu
        nodes.append(Node(len(nodes) + 1, name, kind, tuple(after), float(seconds), about))
        return len(nodes)

    def allreduce(name: str, nbytes: int, after: Sequence[int]) -> int:
        return add(name, COLL, after, comm_type=_ALL_REDUCE, comm_size=nbytes)

    def message(name: str, kind: int, number: int, source: int, after: int) -> int:
        step = made.steps[number]
        where = {"comm_src": source, "comm_dst": int(step.target[source]), "comm_tag": number}
        size = round(step.nbytes[source])
        return add(f"{name} {number}", kind, [after], comm_size=size, **where)

    of = made.gradients
    last = add("forward", COMP, (), of.forward_s[rank])
    last = add("backward", COMP, [last], of.backward_s[rank])
    if of.nbytes:
        last = allreduce("gradients", round(of.nbytes), [last])
    last = add("update", COMP, [last], of.update_s)
    opened, travelling = last, []
    for number, step in enumerate(made.steps):
        if made.barrier_before[number]:
            opened = last = allreduce("barrier", 1, [last])
        last = add(f"work {number}", COMP, [last], step.before_s[rank], cpu=1)
        if step.target[rank] != rank:
            travelling.append(message("send", SEND, number, rank, last))
            travelling.append(message("receive", RECV, number, int(step.source[rank]), opened))
    if made.overlap:
        last = add("next forward", COMP, [last], of.forward_s[rank])
        last = add("next backward", COMP, [last], of.backward_s[rank])
    last = add("store", COMP, [last, *travelling], made.store_s[rank], cpu=1)
    if made.barrier_after:
        allreduce("barrier", 1, [last])
    return nodes


# ------------------------------------------------------------------------------------------- bytes


def encoded(nodes: Sequence[Node]) -> bytes:
    """The bytes of a trace."""
    messages = [_block(_VERSION, VERSION.encode()), *map(_encoded, nodes)]
    return b"".join(_varint(len(message)) + message for message in messages)


def _encoded(node: Node) -> bytes:
    """The message Node. Durations are whole microseconds, by the schema."""
    micros = round(node.seconds * 1e6)
    parts = [
        _number(_ID, node.id),
        _block(_NAME, node.name.encode()),
        _number(_TYPE, node.kind),
    ]
    if node.after:
        parts.append(_block(_DATA_DEPS, b"".join(map(_varint, node.after))))
    if micros:
        parts.append(_number(_DURATION, micros))
    parts += [
        _block(_ATTR, _block(_KEY, key.encode()) + _number(_TYPES[key], value))
        for key, value in node.attributes.items()
    ]
    return b"".join(parts)


def _varint(value: int) -> bytes:
    """A number from 0, seven bits a byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(number: int, value: int) -> bytes:
    """A field that holds a number."""
    return _varint(number << 3 | _VARINT) + _varint(value)


def _block(number: int, content: bytes) -> bytes:
    """A field that holds a text, packed numbers or a message."""
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content
