"""A run of IOR: its options, and whether it measured servers or the memory of its own hosts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from simshuffle.extensions.calibration.calibrate.files import MeasurementFile
from simshuffle.extensions.calibration.calibrate.flags import flags_of, nbytes_of
from simshuffle.extensions.calibration.calibrate.tables import MeasuredNumber, Note

READ_BACK = "read back where written"
"""Mark of reads that the page cache of the host may have answered."""
UNSYNCED = "without fsync"
"""Mark of writes of which the memory of the hosts may hold a part when they count as written."""
AS_SLOW = 1.25
"""Reads no faster than this multiple of the writes, which ended with an fsync, came from where the
writes went to: memory would be many times as fast."""
UNCACHED = ("DFS", "DAOS", "RADOS", "LIBNFS", "S3", "S3-LIBS3", "CEPHFS", "GFARM", "IME", "DUMMY")
"""Interfaces that go past the page cache of a host."""
_CLIENTS = re.compile(r"^(\d+)(?:\s+\((\d+) per node\))?")
_ON = {"1", "true", "yes"}
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
    """A rate that a run printed, in bytes/s, or the mean of ``count`` repetitions."""

    line: int
    operation: str
    value: float
    count: int = 1
    is_mean: bool = False


@dataclass
class IorRun:
    """The options of a test, and its rates."""

    tasks: int = 0
    nodes: int = 0
    tasks_per_node: int = 0
    transfer: float = math.nan
    api: str = ""
    path: str = ""
    is_random: bool = False
    is_shared: bool | None = None
    is_collective: bool = False
    is_direct: bool = False
    # task offsets between writing and reading: none, a constant number of nodes, or random
    offset_nodes: int = 0
    is_shuffled: bool = False
    flags: dict[str, str] | None = None  # of the command line; None if that is not known
    syncs: bool | None = None  # whether writes end with an fsync; None if not known
    squeezes_memory: bool = False
    rates: list[Rate] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.flags is not None:
            self.take_flags(self.flags)

    @property
    def writes(self) -> bool:
        """Whether the run wrote the files itself."""
        if any(rate.operation == "write" for rate in self.rates):
            return True
        if self.flags is None:
            return False
        return "-w" in self.flags or "-r" not in self.flags

    @property
    def num_nodes(self) -> int:
        """Nodes that took part; 0 if not known."""
        if self.nodes or not self.tasks_per_node:
            return self.nodes
        return -(-self.tasks // self.tasks_per_node)

    # ------------------------------------------------------------------------- what a file says

    def take_option(self, source: MeasurementFile, number: int, name: str, text: str) -> None:
        """Take one line of the options.

        Raises:
            InputError: it has no value that IOR would print.
        """
        match name.lower():
            case "command line" | "command line used":
                self.take_flags(flags_of(text))
            case "tasks" | "participating tasks" | "numtasks" if text.isdecimal():
                self.tasks = source.whole(number, text, "tasks", least=1)
            case "tasks":
                raise source.bad(number, "tasks must be a whole number", text)
            case "nodes" if text != "0":
                self.nodes = source.whole(number, text, "nodes", least=1)
            case "clients per node" | "taskspernode":
                self.tasks_per_node = source.whole(number, text, name, least=1)
            case "clients":  # IOR 3.0: 'clients = 16 (8 per node)'
                self.take_clients(source, number, text)
            case "xfersize" | "transfersize":
                self.take_transfer(source, number, text)
            case _:
                self.take_pattern(name.lower(), text)

    def take_clients(self, source: MeasurementFile, number: int, text: str) -> None:
        """Take tasks and nodes as IOR 3.0 writes them."""
        if (clients := _CLIENTS.match(text)) is None:
            raise source.bad(number, "clients must be written 'N (M per node)'", text)
        self.tasks = source.whole(number, clients[1], "clients", least=1)
        if clients[2]:
            self.tasks_per_node = source.whole(number, clients[2], "clients per node", least=1)

    def take_transfer(self, source: MeasurementFile, number: int, text: str) -> None:
        """Take the bytes of a transfer."""
        nbytes = nbytes_of(text)
        if nbytes is None:
            rule = "xfersize must be a size such as '1 MiB' or '262144 bytes'"
            raise source.bad(number, rule, text)
        self.transfer = source.positive(number, str(nbytes), "xfersize")

    def take_pattern(self, name: str, text: str) -> None:
        """Take an option that says how files are read and written."""
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
                self.is_shared = value not in _ON
            case "ordering in a file":
                self.is_random = "random" in value
            case "randomoffset":
                self.is_random = value in _ON
            case "ordering inter file" | "reordertasks" | "reordertasksrandom" | "task offset":
                self.take_offsets(name, value)
            case "taskpernodeoffset" if self.offset_nodes:
                self.take_offsets("task offset", value)
            case "test filename" | "testfilename":
                self.path = text
            case "useo_direct" | "odirect":
                self.is_direct = self.is_direct or value in _ON
            case "fsync":
                self.syncs = value in _ON
            case "memorypernode" | "memorypertask":
                self.squeezes_memory = self.squeezes_memory or not value.startswith("0")

    def take_offsets(self, name: str, value: str) -> None:
        """Take by how many nodes a task reads away from the files that it wrote."""
        count = re.search(r"\d+", value)
        match name:
            case "ordering inter file":
                self.is_shuffled = "random" in value
                self.offset_nodes = 0 if value.startswith("no") else int(count[0] if count else 1)
            case "reordertasks" if value in _ON:
                self.offset_nodes = self.offset_nodes or 1
            case "reordertasksrandom" if value in _ON:
                self.is_shuffled = True
                self.offset_nodes = self.offset_nodes or 1
            case "task offset" if count:
                self.offset_nodes = int(count[0])

    def take_flags(self, flags: dict[str, str]) -> None:
        """Take the flags of a command line, for what the options do not say."""
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

    def take_cells(self, source: MeasurementFile, number: int, cells: dict[str, str]) -> None:
        """Take what a row of the table says beside its rate, for what no option says."""
        if math.isnan(self.transfer) and "xfer(KiB)" in cells:
            kibibytes = source.number(number, cells["xfer(KiB)"], "xfer(KiB)")
            self.transfer = kibibytes * 2**10 or math.nan
        if not self.tasks and cells.get("numTasks", "").isdecimal():
            self.tasks = source.whole(number, cells["numTasks"], "numTasks", least=1)

    def take_summary(self, source: MeasurementFile, number: int, cells: dict[str, str]) -> None:
        """Take the options in a row of 'Summary of all tests', for what the head did not say."""
        if not self.tasks:
            for column, name in _SUMMARY_OPTIONS.items():
                if column in cells:
                    self.take_option(source, number, name, cells[column])
        if math.isnan(self.transfer) and "xsize" in cells:
            self.take_transfer(source, number, cells["xsize"])

    # ---------------------------------------------------------------------------- what it means

    def reads_where_written(self, written: set[str]) -> bool:
        """Whether each task reads what a task of the same host wrote shortly before, through the
        page cache; ``written`` are the files of the runs before in the same output."""
        if not self.writes and (not self.path or self.path not in written):
            return False
        if self.is_direct or self.squeezes_memory or self.api in UNCACHED:
            return False
        if not self.offset_nodes:
            return True
        return self.num_nodes == 1 or (
            self.num_nodes > 1 and not self.is_shuffled and self.offset_nodes % self.num_nodes == 0
        )

    def pattern_of(self, operation: str) -> str:
        """Say how files were read or written, for people and to group by."""
        words = ["random" if self.is_random else "sequential"]
        if self.is_shared is not None:
            words.append("one shared file" if self.is_shared else "a file for each task")
        words += ["collective"] * self.is_collective + ["O_DIRECT"] * self.is_direct
        if self.api not in {"", "POSIX"}:
            words.append(self.api)
        if operation == "write" and self.syncs is False and not self.is_direct:
            words.append(UNSYNCED)
        return ", ".join(words)

    def rows(self, source: MeasurementFile, written: set[str]) -> Iterator[MeasuredNumber | Note]:
        """Make the rows of the run.

        Raises:
            InputError: nothing says how many tasks took part.
        """
        rates = self.rates
        if any(not rate.is_mean for rate in rates):
            repeated = {rate.operation for rate in rates if not rate.is_mean}
            rates = [r for r in rates if not (r.is_mean and r.operation in repeated)]
        if rates and not self.tasks and not source.ranks:
            rule = "comes before a line 'tasks : N' among the options"
            remedy = "Keep the options in the file, or add --ranks N and --hosts M."
            raise source.bad(rates[0].line, rule, rates[0].operation, remedy)
        from_own_host = self.reads_where_written(written)
        synced = [rate.value for rate in rates if rate.operation == "write"] if self.syncs else []
        read = [rate.value for rate in rates if rate.operation == "read"]
        if from_own_host and synced and read and max(read) <= AS_SLOW * max(synced):
            from_own_host = False
            yield Note(
                source.name,
                f"reads come from hosts that wrote the files, but are at most {AS_SLOW:g} times as"
                " fast as the writes, which ended with an fsync: they were taken",
            )
        for rate in rates:
            pattern = self.pattern_of(rate.operation)
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
