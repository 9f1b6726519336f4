"""A run of IOR: its options, and whether it measured servers or the memory of its own
hosts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from simshuffle.extensions.calibration.calibrate.files import MeasurementFile
from simshuffle.extensions.calibration.calibrate.flags import parse_flags, parse_nbytes
from simshuffle.extensions.calibration.calibrate.tables import MeasuredNumber, Note

READ_BACK = "read back where written"
"""Mark of reads that the page cache of the host may have answered."""
UNSYNCED = "without fsync"
"""Mark of writes of which the memory of the hosts may hold a part when they count as
written.
"""
MAX_UNCACHED_FACTOR = 1.25
"""Reads no faster than this multiple of the writes, which ended with an fsync, came
from where the writes went to: memory would be many times as fast.
"""
UNCACHED_INTERFACES = (
    "DFS",
    "DAOS",
    "RADOS",
    "LIBNFS",
    "S3",
    "S3-LIBS3",
    "CEPHFS",
    "GFARM",
    "IME",
    "DUMMY",
)
"""Interfaces that go past the page cache of a host."""
_CLIENTS = re.compile(r"^(\d+)(?:\s+\((\d+) per node\))?")
_ON_VALUES = {"1", "true", "yes"}
_SUMMARY_OPTIONS = {
    "#Tasks": "tasks",
    "tPN": "clients per node",
    "fPP": "filePerProc",
    "reord": "reorderTasks",
    "reordrand": "reorderTasksRandom",
    "reordoff": "taskPerNodeOffset",
    "API": "api",
}
"""The option that each column of 'Summary of all tests' says."""


@dataclass(frozen=True)
class Rate:
    """A rate that a run of IOR printed, in bytes/s, or the mean of ``count``
    repetitions.
    """

    line: int  # of the file, from 1; of JSON the number of the result
    operation: str  # 'read' or 'write'
    value: float  # bytes/s of all tasks together
    count: int = 1
    is_mean: bool = False  # whether it is from 'Summary of all tests'


@dataclass
class IorRun:
    """A test of IOR: its options, and the rates that it printed."""

    tasks: int = 0  # this and the next two: 0 if not known
    nodes: int = 0
    tasks_per_node: int = 0
    transfer: float = math.nan  # bytes; nan if not known
    api: str = ""  # in capitals, without what follows a hyphen; '' if not known
    path: str = ""  # of the test file; '' if not known
    is_random: bool = False
    is_shared: bool | None = None  # one file for all tasks; None if not known
    is_collective: bool = False
    is_direct: bool = False  # O_DIRECT
    # task offsets between writing and reading: none, a constant number of nodes, or random
    offset_nodes: int = 0
    is_shuffled: bool = False
    flags: dict[str, str] | None = (
        None  # of the command line; None if that is not known
    )
    syncs: bool | None = None  # whether writes end with an fsync; None if not known
    squeezes_memory: bool = False  # whether IOR fills memory up, so that none caches
    rates: list[Rate] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Take the options that ``flags`` give."""
        if self.flags is not None:
            self.take_flags(self.flags)

    @property
    def wrote_files(self) -> bool:
        """True if the run wrote the files that it used: it printed a write, or its
        flags ask for one; False if neither is known.
        """
        if any(rate.operation == "write" for rate in self.rates):
            return True
        if self.flags is None:
            return False
        return "-w" in self.flags or "-r" not in self.flags

    @property
    def num_nodes(self) -> int:
        """Nodes that took part, as printed or from the tasks of a node, rounded up; 0
        if not known.
        """
        if self.nodes or not self.tasks_per_node:
            return self.nodes
        return -(-self.tasks // self.tasks_per_node)

    # ------------------------------------------------------------------------- what a file says

    def take_option(
        self, source: MeasurementFile, line_number: int, name: str, text: str
    ) -> None:
        """Take the value of one option as IOR prints it; unknown options are ignored.

        Raises:
            InputError: it has no value that IOR would print.
        """
        match name.lower():
            case "command line" | "command line used":
                self.take_flags(parse_flags(text))
            case "tasks" | "participating tasks" | "numtasks" if text.isdecimal():
                self.tasks = source.read_whole(line_number, text, "tasks", minimum=1)
            case "tasks":
                raise source.error_in_line(
                    line_number, "tasks must be a whole number", text
                )
            case "nodes" if text != "0":
                self.nodes = source.read_whole(line_number, text, "nodes", minimum=1)
            case "clients per node" | "taskspernode":
                self.tasks_per_node = source.read_whole(
                    line_number, text, name, minimum=1
                )
            case "clients":  # IOR 3.0: 'clients = 16 (8 per node)'
                self.take_clients(source, line_number, text)
            case "xfersize" | "transfersize":
                self.take_transfer(source, line_number, text)
            case _:
                self.take_pattern(name.lower(), text)

    def take_clients(
        self, source: MeasurementFile, line_number: int, text: str
    ) -> None:
        """Take tasks and tasks of a node as IOR 3.0 writes them: '16 (8 per node)'.

        Raises:
            InputError: the text is not written so.
        """
        if (clients := _CLIENTS.match(text)) is None:
            raise source.error_in_line(
                line_number, "clients must be written 'N (M per node)'", text
            )
        self.tasks = source.read_whole(line_number, clients[1], "clients", minimum=1)
        if clients[2]:
            self.tasks_per_node = source.read_whole(
                line_number, clients[2], "clients per node", minimum=1
            )

    def take_transfer(
        self, source: MeasurementFile, line_number: int, text: str
    ) -> None:
        """Take the bytes of a transfer from a size such as '1 MiB'.

        Raises:
            InputError: the text is no size above 0.
        """
        nbytes = parse_nbytes(text)
        if nbytes is None:
            rule = "xfersize must be a size such as '1 MiB' or '262144 bytes'"
            raise source.error_in_line(line_number, rule, text)
        self.transfer = source.read_positive(line_number, str(nbytes), "xfersize")

    def take_pattern(self, name: str, text: str) -> None:
        """Take an option that says how files are read and written; ignore any other.

        ``name`` is in small letters. taskPerNodeOffset counts only after an option that
        says that tasks are reordered.
        """
        value = text.lower()
        match name:
            case "api":
                self.api = text.upper().partition("-")[0].partition(" ")[0]
            case "access":
                self.is_shared = "shared" in value
                self.is_collective = self.is_collective or "collective" in value
            case "type" | "collective":
                self.is_collective = value in {"collective", "1"}
            case "fileperproc":
                self.is_shared = value not in _ON_VALUES
            case "ordering in a file":
                self.is_random = "random" in value
            case "randomoffset":
                self.is_random = value in _ON_VALUES
            case (
                "ordering inter file"
                | "reordertasks"
                | "reordertasksrandom"
                | "task offset"
            ):
                self.take_offsets(name, value)
            case "taskpernodeoffset" if self.offset_nodes:
                self.take_offsets("task offset", value)
            case "test filename" | "testfilename":
                self.path = text
            case "useo_direct" | "odirect":
                self.is_direct = self.is_direct or value in _ON_VALUES
            case "fsync":
                self.syncs = value in _ON_VALUES
            case "memorypernode" | "memorypertask":
                self.squeezes_memory = self.squeezes_memory or not value.startswith("0")

    def take_offsets(self, name: str, value: str) -> None:
        """Take the number of nodes between a task that wrote a file and the task that
        reads it.
        """
        count = re.search(r"\d+", value)
        match name:
            case "ordering inter file":
                self.is_shuffled = "random" in value
                self.offset_nodes = (
                    0 if value.startswith("no") else int(count[0] if count else 1)
                )
            case "reordertasks" if value in _ON_VALUES:
                self.offset_nodes = self.offset_nodes or 1
            case "reordertasksrandom" if value in _ON_VALUES:
                self.is_shuffled = True
                self.offset_nodes = self.offset_nodes or 1
            case "task offset" if count:
                self.offset_nodes = int(count[0])

    def take_flags(self, flags: dict[str, str]) -> None:
        """Take the options that only the flags of the command line give.

        ``flags`` are as of `parse_flags`. What they do not give of fsync, O_DIRECT,
        filling memory and random order is off from then on.
        """
        self.flags = flags
        directives = flags.get("-O", "").lower()
        self.syncs = "-e" in flags or "-Y" in flags or "fsync=1" in directives
        self.is_direct = bool(
            {"-B", "--posix.odirect"} & flags.keys() or "useo_direct=1" in directives
        )
        self.squeezes_memory = "-M" in flags or "memorypernode=" in directives
        self.is_random = "-z" in flags or "randomoffset=1" in directives
        if {"-C", "-Z"} & flags.keys():
            digits = flags.get("-Q", "1")
            self.offset_nodes = int(digits[:9]) if digits.isdecimal() else 1
            self.is_shuffled = "-Z" in flags

    def take_cells(
        self, source: MeasurementFile, line_number: int, cells: dict[str, str]
    ) -> None:
        """Take the bytes of a transfer and the tasks from a row, if no option gave
        them.
        """
        if math.isnan(self.transfer) and "xfer(KiB)" in cells:
            kibibytes = source.read_number(line_number, cells["xfer(KiB)"], "xfer(KiB)")
            self.transfer = kibibytes * 2**10 or math.nan
        if not self.tasks and cells.get("numTasks", "").isdecimal():
            self.tasks = source.read_whole(
                line_number, cells["numTasks"], "numTasks", minimum=1
            )

    def take_summary(
        self, source: MeasurementFile, line_number: int, cells: dict[str, str]
    ) -> None:
        """Take options in a row of 'Summary of all tests' that the head did not give.

        They are the bytes of a transfer; and all others if the head gave no number of
        tasks, else none of the others.
        """
        if not self.tasks:
            for column, name in _SUMMARY_OPTIONS.items():
                if column in cells:
                    self.take_option(source, line_number, name, cells[column])
        if math.isnan(self.transfer) and "xsize" in cells:
            self.take_transfer(source, line_number, cells["xsize"])

    # ---------------------------------------------------------------------------- what it means

    def reads_own_writes(self, written_paths: set[str]) -> bool:
        """Return whether the page cache may answer: each task reads what a task of its
        host just wrote.

        False for O_DIRECT, `UNCACHED_INTERFACES` or memory that is filled up, and where
        the nodes are not known and tasks are offset.

        Args:
            written_paths: the files of the runs before in the same output.
        """
        if not self.wrote_files and (not self.path or self.path not in written_paths):
            return False
        if self.is_direct or self.squeezes_memory or self.api in UNCACHED_INTERFACES:
            return False
        if not self.offset_nodes:
            return True
        return self.num_nodes == 1 or (
            self.num_nodes > 1
            and not self.is_shuffled
            and self.offset_nodes % self.num_nodes == 0
        )

    def describe_pattern(self, operation: str) -> str:
        """Describe how files were read or written, for people and to group rows by.

        Such as 'sequential, a file for each task'. Writes have `UNSYNCED` if they are
        known to end without an fsync and are not O_DIRECT.
        """
        parts = ["random" if self.is_random else "sequential"]
        if self.is_shared is not None:
            parts.append(
                "one shared file" if self.is_shared else "a file for each task"
            )
        parts += ["collective"] * self.is_collective + ["O_DIRECT"] * self.is_direct
        if self.api not in {"", "POSIX"}:
            parts.append(self.api)
        if operation == "write" and self.syncs is False and not self.is_direct:
            parts.append(UNSYNCED)
        return ", ".join(parts)

    def measured_numbers(
        self, source: MeasurementFile, written_paths: set[str]
    ) -> Iterator[MeasuredNumber | Note]:
        """Yield a measured number for each rate, and a note where reads from a cache
        are in doubt; a mean only if no repetition of its operation was printed.

        Reads that a cache may have answered get the mark `READ_BACK`, unless they are
        at most `MAX_UNCACHED_FACTOR` times as fast as synchronised writes.

        Raises:
            InputError: nothing says how many tasks took part.
        """
        rates = self.rates
        if any(not rate.is_mean for rate in rates):
            repeated = {rate.operation for rate in rates if not rate.is_mean}
            rates = [
                rate
                for rate in rates
                if not (rate.is_mean and rate.operation in repeated)
            ]
        if rates and not self.tasks and not source.ranks:
            rule = "the rate comes before any line 'tasks : N' of the options"
            remedy = "Keep the options in the file, or add --ranks N and --hosts M."
            raise source.error_in_line(rates[0].line, rule, rates[0].operation, remedy)
        from_own_host = self.reads_own_writes(written_paths)
        synced_writes = (
            [rate.value for rate in rates if rate.operation == "write"]
            if self.syncs
            else []
        )
        read_rates = [rate.value for rate in rates if rate.operation == "read"]
        if (
            from_own_host
            and synced_writes
            and read_rates
            and max(read_rates) <= MAX_UNCACHED_FACTOR * max(synced_writes)
        ):
            from_own_host = False
            yield Note(
                source.name,
                "the hosts that wrote the files also read them; these reads count, since they are"
                f" at most {MAX_UNCACHED_FACTOR:g} times as fast as the writes, which ended with an"
                " fsync",
            )
        for rate in rates:
            pattern = self.describe_pattern(rate.operation)
            if rate.operation == "read" and from_own_host:
                pattern = f"{pattern}, {READ_BACK}"
            yield MeasuredNumber(
                source=source.name,
                line=rate.line,
                tool="ior",
                operation=rate.operation,
                ranks=self.tasks or source.ranks,
                hosts=float(self.num_nodes) if self.num_nodes else source.hosts,
                nbytes=self.transfer,
                rate=rate.value,
                count=rate.count,
                algorithm=pattern,
            )
