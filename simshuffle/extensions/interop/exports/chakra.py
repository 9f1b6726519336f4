"""Execution traces of Chakra (MLCommons), which ASTRA-sim reads: a file of nodes for each rank. The
schema is in `simshuffle.extensions.doctor.records.chakra_schema`.

Types of attributes are those that the older feeder of Chakra needs (src/feeder/et_feeder_node.cpp,
commit 02da5d0), and the newer one converts. What ASTRA-sim makes of a node is in its
astra-sim/workload/Workload.cc, commit 0383c20. For it

- a barrier is an allreduce of one byte: it refuses the schema's BARRIER;
- the host's reading, working and storing are compute nodes of the CPU with a duration: a node of
  memory ends it unless a remote memory is described, one of storage always. With ``storage``, for
  tools that take them, reading and writing of files are nodes of storage, with their bytes;
- all dependencies are data_deps: its older feeder does not look at ctrl_deps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simshuffle.extensions.doctor.records import chakra_schema as schema
from simshuffle.extensions.doctor.records.chakra_schema import (
    COLL,
    COMP,
    RECV,
    SEND,
    STORAGE,
    VERSION,
    ChakraNode,
    StorageOperation,
)
from simshuffle.extensions.interop.exports.program import Program, Tell

STEM = "exchange"
"""What the names of the files begin with."""

_ALL_REDUCE = 0  # a value of CollectiveCommType
_TYPES = {
    "is_cpu_op": schema.BOOL,
    "comm_type": schema.INT64,
    "comm_size": schema.INT64,
    "comm_src": schema.INT32,
    "comm_dst": schema.INT32,
    "comm_tag": schema.INT32,
}


def write(made: Program, path: Path, tell: Tell, *, storage: bool = False) -> list[str]:
    """Write the traces of an iteration to a new folder ``path``, with nodes of storage if so."""
    path.mkdir()
    count = 0
    for rank in range(made.world_size):
        nodes = nodes_of(made, rank, storage=storage)
        (path / f"{STEM}.{rank}.et").write_bytes(encoded(nodes))
        count += len(nodes)
        tell((rank + 1) / made.world_size)
    taken = f"ASTRA-sim takes it as --workload-configuration={path.name}/{STEM}"
    refused = "It has nodes of storage, which ASTRA-sim refuses: it takes --to chakra."
    return [
        f"Iteration {made.iteration} of epoch {made.epoch}: {count} nodes of {made.world_size}"
        " ranks.",
        refused if storage else taken,
    ]


def nodes_of(made: Program, rank: int, *, storage: bool = False) -> list[ChakraNode]:
    """What a rank does in an iteration, in the order of the schedule. Where messages are waited for
    after the next backward pass, that pass is here too, and takes the time of this iteration's."""
    nodes: list[ChakraNode] = []

    def add(
        name: str, kind: int, after: Sequence[int], seconds: float = 0.0, cpu: int = 0, **about: int
    ) -> int:
        about["is_cpu_op"] = cpu
        nodes.append(ChakraNode(len(nodes) + 1, name, kind, tuple(after), float(seconds), about))
        return len(nodes)

    def stored(name: str, op: int, nbytes: float, after: int, seconds: float) -> int:
        number, what = len(nodes) + 1, StorageOperation(op, round(nbytes))
        known = {"is_cpu_op": 1}
        nodes.append(ChakraNode(number, name, STORAGE, (after,), float(seconds), known, what))
        return number

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
        working = step.before_s[rank]
        if storage and step.read_nbytes[rank]:
            reading, working = step.read_s[rank], step.work_s[rank]
            last = stored(f"read {number}", schema.READS[0], step.read_nbytes[rank], last, reading)
        last = add(f"work {number}", COMP, [last], working, cpu=1)
        if step.target[rank] != rank:
            travelling.append(message("send", SEND, number, rank, last))
            travelling.append(message("receive", RECV, number, int(step.source[rank]), opened))
    if made.overlap:
        last = add("next forward", COMP, [last], of.forward_s[rank])
        last = add("next backward", COMP, [last], of.backward_s[rank])
    writes = storage and bool(made.write_nbytes[rank])
    storing = made.unpack_s[rank] if writes else made.store_s[rank]
    last = add("store", COMP, [last, *travelling], storing, cpu=1)
    if writes:
        last = stored("write", schema.WRITES[0], made.write_nbytes[rank], last, made.write_s[rank])
    if made.barrier_after:
        allreduce("barrier", 1, [last])
    return nodes


# ------------------------------------------------------------------------------------------- bytes


def encoded(nodes: Sequence[ChakraNode]) -> bytes:
    """The bytes of a trace."""
    messages = [_block(schema.META_VERSION, VERSION.encode()), *map(_encoded, nodes)]
    return b"".join(_varint(len(message)) + message for message in messages)


def _encoded(node: ChakraNode) -> bytes:
    """The message Node. Durations are whole microseconds, by the schema."""
    micros = round(node.seconds * 1e6)
    parts = [
        _number(schema.ID, node.id),
        _block(schema.NAME, node.name.encode()),
        _number(schema.TYPE, node.kind),
    ]
    if node.after:
        parts.append(_block(schema.DATA_DEPS, b"".join(map(_varint, node.after))))
    if micros:
        parts.append(_number(schema.DURATION, micros))
    parts += [
        _block(schema.ATTR, _block(schema.KEY, key.encode()) + _number(_TYPES[key], value))
        for key, value in node.attributes.items()
    ]
    if node.storage:
        done = _number(schema.OP, node.storage.op) + _number(schema.SIZE, node.storage.nbytes)
        info = _number(schema.LEVEL, schema.FILE_SYSTEM) + _block(schema.FS, done)
        parts.append(_block(schema.INFO, info))
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
    return _varint(number << 3 | schema.VARINT) + _varint(value)


def _block(number: int, content: bytes) -> bytes:
    """A field that holds a text, packed numbers or a message."""
    return _varint(number << 3 | schema.BYTES) + _varint(len(content)) + content
