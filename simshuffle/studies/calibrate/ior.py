"""IOR: the results table of versions 3.0 to 4.0. Bandwidths are MiB/s, over all tasks together."""

from __future__ import annotations

import math
import re

from simshuffle.studies.calibrate.files import Source
from simshuffle.studies.calibrate.rows import Row

TOOL = "ior"
MIB = 2.0**20
_BANNER = re.compile(r"^\s*IOR-\d")
_OPTION = re.compile(r"^\s*(tasks|nodes|clients|xfersize)\s*[:=]\s*(.*?)\s*$")
_CLIENTS = re.compile(r"^(\d+)(?:\s+\((\d+) per node\))?")
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)\s*(bytes|KiB|MiB|GiB|TiB)$")
_SCALE = {"bytes": 1.0, "KiB": 2.0**10, "MiB": MIB, "GiB": 2.0**30, "TiB": 2.0**40}


class _Run:
    """The options of the run that is being read, and whether its table has begun."""

    def __init__(self) -> None:
        self.tasks = 0
        self.nodes = 0
        self.transfer = math.nan
        self.columns: list[str] = []

    def option(self, source: Source, number: int, name: str, text: str) -> None:
        """Take over one line of the options."""
        if name == "xfersize":
            size = _SIZE.match(text)
            if size is None:
                rule = "xfersize must be a size such as '1 MiB' or '262144 bytes'"
                raise source.bad(number, rule, text)
            self.transfer = source.number(number, size[1], "xfersize") * _SCALE[size[2]]
        elif name == "clients":  # IOR 3.0: 'clients = 16 (8 per node)'
            clients = _CLIENTS.match(text)
            if clients is None:
                raise source.bad(number, "clients must be written 'N (M per node)'", text)
            self.tasks = source.whole(number, clients[1], "clients", least=1)
            each = source.whole(number, clients[2] or "1", "clients per node", least=1)
            self.nodes = -(-self.tasks // each) if clients[2] else 0
        elif name == "tasks":
            self.tasks = source.whole(number, text, "tasks", least=1)
        else:
            self.nodes = source.whole(number, text, "nodes", least=1)


def read(source: Source) -> list[Row]:
    """The reads and writes of all runs in the file; a row for each repetition.

    Raises:
        InputError: with the line.
    """
    run, rows = _Run(), []
    for number, line in source.lines():
        words = line.split()
        if _BANNER.match(line):
            run = _Run()
        elif option := _OPTION.match(line):
            run.option(source, number, option[1], option[2])
        elif words[:2] == ["access", "bw(MiB/s)"]:
            run.columns = words
        elif line.strip().startswith(("Max Write", "Max Read", "Summary of all tests")):
            run.columns = []
        elif run.columns and words and words[0] in {"read", "write"}:
            rows.append(_row(source, number, line, run))
    if not rows:
        rule = "must hold rows 'read' or 'write' below 'access    bw(MiB/s) ...'"
        raise source.bad(0, rule, remedy="Run IOR without -q.")
    return rows


def _row(source: Source, number: int, line: str, run: _Run) -> Row:
    cells = line.split()
    if len(cells) != len(run.columns):
        rule = f"must be a row with the {len(run.columns)} columns {' '.join(run.columns)}"
        raise source.bad(number, rule, line)
    if not run.tasks:
        rule = "comes before a line 'tasks : N' among the options"
        raise source.bad(number, rule, line, "Keep the options in the file.")
    rate = source.positive(number, cells[1], "bw(MiB/s)") * MIB
    hosts = float(run.nodes) if run.nodes else math.nan
    return Row(source.name, number, TOOL, cells[0], run.tasks, hosts, run.transfer, rate=rate)
