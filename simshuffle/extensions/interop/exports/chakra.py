"""Write execution traces of Chakra (MLCommons), which ASTRA-sim reads: a file for each
rank.

The schema is in `simshuffle.extensions.doctor.records.chakra_schema`.

Types of attributes are those that the older feeder of Chakra needs
(src/feeder/et_feeder_node.cpp, commit 02da5d0), and the newer one converts. What
ASTRA-sim makes of a node is in its astra-sim/workload/Workload.cc, commit 0383c20. For
it

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


def write(
    program: Program, path: Path, tell: Tell, *, storage: bool = False
) -> list[str]:
    """Write the traces of an iteration to a new folder ``path``, and return lines about
    them for people.

    The files are `exchange.RANK.et`, one for each rank.

    Args:
        program: the exchange of the iteration.
        path: the folder, which is made and must not exist.
        tell: receives the share that is written, from 0 to 1.
        storage: whether reading and writing of files are nodes of storage; else they
            are in the computing of the CPU.
    """
    path.mkdir()
    num_nodes = 0
    for rank in range(program.world_size):
        nodes = nodes_of_rank(program, rank, storage=storage)
        (path / f"{STEM}.{rank}.et").write_bytes(encode_trace(nodes))
        num_nodes += len(nodes)
        tell((rank + 1) / program.world_size)
    usage = f"ASTRA-sim takes it as --workload-configuration={path.name}/{STEM}"
    refusal = "ASTRA-sim refuses its nodes of storage; for ASTRA-sim, use --to chakra."
    return [
        f"Iteration {program.iteration} of epoch {program.epoch}: {num_nodes} nodes of"
        f" {program.world_size} ranks.",
        refusal if storage else usage,
    ]


class _NodeBuilder:
    """Nodes of a rank in an iteration, each with the nodes that it depends on.

    Every method adds one node and returns its number, from 1. ``nodes`` has them in
    this order.
    """

    def __init__(self, program: Program, rank: int) -> None:
        self._program = program
        self._rank = rank
        self.nodes: list[ChakraNode] = []

    def _add(
        self,
        name: str,
        kind: int,
        dependencies: Sequence[int],
        attributes: dict[str, int],
        *,
        seconds: float = 0.0,
        storage: StorageOperation | None = None,
    ) -> int:
        """Add a node of a kind of the schema."""
        number = len(self.nodes) + 1
        self.nodes.append(
            ChakraNode(
                number,
                name,
                kind,
                tuple(dependencies),
                float(seconds),
                attributes,
                storage,
            )
        )
        return number

    def compute(
        self, name: str, seconds: float, *dependencies: int, on_cpu: bool = False
    ) -> int:
        """Add computing that takes so many s, on the GPU, or with ``on_cpu`` the CPU."""
        return self._add(
            name, COMP, dependencies, {"is_cpu_op": int(on_cpu)}, seconds=seconds
        )

    def move_files(
        self, name: str, operation: StorageOperation, seconds: float, dependency: int
    ) -> int:
        """Add reading or writing of files that takes so many s."""
        attributes = {"is_cpu_op": 1}
        return self._add(
            name, STORAGE, [dependency], attributes, seconds=seconds, storage=operation
        )

    def allreduce(self, name: str, nbytes: int, dependency: int) -> int:
        """Add an allreduce of so many bytes by all ranks; the network decides its time."""
        attributes = {"comm_type": _ALL_REDUCE, "comm_size": nbytes, "is_cpu_op": 0}
        return self._add(name, COLL, [dependency], attributes)

    def send(self, step_index: int, dependency: int) -> int:
        """Add the message that the rank sends in a step."""
        return self._message(
            f"send {step_index}", SEND, step_index, self._rank, dependency
        )

    def receive(self, step_index: int, dependency: int) -> int:
        """Add the message that the rank receives in a step, in which one must come."""
        source = int(self._program.steps[step_index].source[self._rank])
        return self._message(
            f"receive {step_index}", RECV, step_index, source, dependency
        )

    def _message(
        self, name: str, kind: int, step_index: int, source: int, dependency: int
    ) -> int:
        """Add one end (SEND or RECV) of the message that the rank ``source`` sends in a
        step; its tag is the index of the step.
        """
        step = self._program.steps[step_index]
        attributes = {
            "comm_size": round(step.nbytes[source]),
            "comm_src": source,
            "comm_dst": int(step.target[source]),
            "comm_tag": step_index,
            "is_cpu_op": 0,
        }
        return self._add(name, kind, [dependency], attributes)


def nodes_of_rank(
    program: Program, rank: int, *, storage: bool = False
) -> list[ChakraNode]:
    """Return the nodes of a rank in an iteration, in the order of the schedule: passes,
    sum of gradients if there are several ranks, update, then the exchange.

    The exchange is, for each step, a barrier if there is one, work and a message, and
    after all of them storing. Where messages are waited for after the next backward
    pass, the next two passes are here too, and take the time of this iteration's.
    Receives wait for the last barrier alone, not for work.

    Args:
        program: the exchange of the iteration.
        rank: the rank.
        storage: whether reading and writing of files are nodes of storage; else they
            are in the computing of the CPU.
    """
    builder = _NodeBuilder(program, rank)
    gradients = program.gradients
    last_node = builder.compute("forward", gradients.forward_s[rank])
    last_node = builder.compute("backward", gradients.backward_s[rank], last_node)
    if gradients.nbytes:
        last_node = builder.allreduce("gradients", round(gradients.nbytes), last_node)
    last_node = builder.compute("update", gradients.update_s, last_node)

    barrier_node = last_node  # receives are posted after it
    message_nodes: list[int] = []
    for step_index, step in enumerate(program.steps):
        if program.barrier_before[step_index]:
            barrier_node = last_node = builder.allreduce("barrier", 1, last_node)
        work_s = step.before_s[rank]
        if storage and step.read_nbytes[rank]:
            work_s = step.work_s[rank]
            operation = StorageOperation(schema.READS[0], round(step.read_nbytes[rank]))
            last_node = builder.move_files(
                f"read {step_index}", operation, step.read_s[rank], last_node
            )
        last_node = builder.compute(
            f"work {step_index}", work_s, last_node, on_cpu=True
        )
        if step.target[rank] != rank:
            message_nodes.append(builder.send(step_index, last_node))
            message_nodes.append(builder.receive(step_index, barrier_node))

    if program.overlap:
        last_node = builder.compute(
            "next forward", gradients.forward_s[rank], last_node
        )
        last_node = builder.compute(
            "next backward", gradients.backward_s[rank], last_node
        )
    writes_files = storage and bool(program.write_nbytes[rank])
    store_s = program.unpack_s[rank] if writes_files else program.store_s[rank]
    last_node = builder.compute(
        "store", store_s, last_node, *message_nodes, on_cpu=True
    )
    if writes_files:
        operation = StorageOperation(
            schema.WRITES[0], round(program.write_nbytes[rank])
        )
        last_node = builder.move_files(
            "write", operation, program.write_s[rank], last_node
        )
    if program.barrier_after:
        builder.allreduce("barrier", 1, last_node)
    return builder.nodes


# ------------------------------------------------------------------------------------------- bytes


def encode_trace(nodes: Sequence[ChakraNode]) -> bytes:
    """Return the bytes of a trace file: the metadata and each node behind its length.

    Starts of nodes are left out. Attributes can only be those of `_TYPES`.
    """
    messages = [
        _encode_bytes_field(schema.META_VERSION, VERSION.encode()),
        *map(_encode_node, nodes),
    ]
    return b"".join(_encode_varint(len(message)) + message for message in messages)


def _encode_node(node: ChakraNode) -> bytes:
    """Return the message Node. Durations are rounded to whole microseconds, the unit of
    the schema; a duration of 0 is left out.
    """
    duration_us = round(node.seconds * 1e6)
    fields = [
        _encode_number_field(schema.ID, node.id),
        _encode_bytes_field(schema.NAME, node.name.encode()),
        _encode_number_field(schema.TYPE, node.kind),
    ]
    if node.dependencies:
        fields.append(
            _encode_bytes_field(
                schema.DATA_DEPS, b"".join(map(_encode_varint, node.dependencies))
            )
        )
    if duration_us:
        fields.append(_encode_number_field(schema.DURATION, duration_us))
    for key, value in node.attributes.items():
        attribute = _encode_bytes_field(schema.KEY, key.encode())
        attribute += _encode_number_field(_TYPES[key], value)
        fields.append(_encode_bytes_field(schema.ATTR, attribute))
    if node.storage:
        operation = _encode_number_field(schema.OP, node.storage.op)
        operation += _encode_number_field(schema.SIZE, node.storage.nbytes)
        storage_fields = _encode_number_field(schema.LEVEL, schema.FILE_SYSTEM)
        storage_fields += _encode_bytes_field(schema.FS, operation)
        fields.append(_encode_bytes_field(schema.INFO, storage_fields))
    return b"".join(fields)


def _encode_varint(value: int) -> bytes:
    """Return a number from 0 as bytes: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _encode_number_field(field_number: int, value: int) -> bytes:
    """Return a field that holds a number."""
    return _encode_varint(field_number << 3 | schema.VARINT) + _encode_varint(value)


def _encode_bytes_field(field_number: int, content: bytes) -> bytes:
    """Return a field that holds text, packed numbers or a message."""
    return (
        _encode_varint(field_number << 3 | schema.BYTES)
        + _encode_varint(len(content))
        + content
    )
