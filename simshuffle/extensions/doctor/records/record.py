"""The record of a training: one table, and what is known beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.recorder.rows import OPERATIONS

KEY = b"simshuffle.record"
"""Of the Parquet file's metadata: what is known beside the rows, as JSON."""
FORMAT = 1
"""Of that JSON; another one is refused."""
COLUMNS: Mapping[str, str] = {
    "rank": "int32",  # 0 where there is one
    "loader": "int16",  # which of the rank's loaders; -1 for none
    "epoch": "int32",  # from 0, of that loader
    "batch": "int64",  # from 0 in its epoch; -1 for none
    "worker": "int16",  # -1 for the process of the rank itself
    "operation": "category",  # see `OPERATIONS`
    "start_s": "float64",  # from the first row on; the same clock for all ranks of a host
    "seconds": "float64",  # how long
    "cpu_s": "float64",  # of it computing; nan if not known
    "queued_s": "float64",  # of it without a core; nan if not known
    "count": "int64",  # samples, files or reads
    "nbytes": "int64",  # read, opened, copied or summed; 0 if not known
    "disk_nbytes": "float64",  # of them, from the device; nan if not known
    "sample": "int64",  # index; -1 for none
}
"""Columns of the table, and their types. Missing ones are filled by `framed`."""
_EMPTY: Mapping[str, Any] = {
    **{"rank": 0, "loader": 0, "epoch": 0, "batch": -1, "worker": -1, "count": 0, "nbytes": 0},
    **{"cpu_s": np.nan, "queued_s": np.nan, "disk_nbytes": np.nan, "sample": -1},
}


@dataclass(frozen=True)
class Record:
    """A record.

    ``about`` holds what is known, and leaves out what is not:

    - ``made_by``: 'simshuffle', 'kineto', 'traceml', 'ray', 'dlio' or 'chakra';
    - ``command``: words; ``exit_status`` of it; ``seconds`` that it took;
    - ``ranks``: M of the training; the rows may be of fewer;
    - ``loaders``: for each a mapping, with batch_size, num_workers, prefetch_factor, pin_memory,
      persistent_workers, in_order, samples (of the data set), sampler and dataset (names of
      classes), drop_last;
    - ``host``: name, cores (that the process may use), all_cores, memory_nbytes, others (cores that
      other programs had in the mean);
    - ``places``: where in the code fetches and steps were seen, 20 times a second, most often
      first: operation, file, function, line, calls (a function of a library, or ''), transforms
      (whether a transform was at work), count;
    - ``threads``: of torch in the process of a rank; ``torch``: its version; ``device``: as torch
      names it;
    - ``model``: parameters, gradient_nbytes, buckets (bytes of each, in the order of the trace);
    - ``files``: different ones that were opened; ``files_nbytes``: of these;
    - ``notes``: sentences on what could not be seen.
    """

    rows: pd.DataFrame  # columns `COLUMNS`, in the order of start_s
    about: Mapping[str, Any]
    source: str  # file or folder that it is from

    def of(self, *operations: str) -> pd.DataFrame:
        """The rows of some operations."""
        return self.rows[self.rows["operation"].isin(operations)]

    def write(self, path: Path) -> None:
        """Write it to a Parquet file."""
        table = pa.Table.from_pandas(self.rows, preserve_index=False)
        text = json.dumps({"format": FORMAT, **self.about}, allow_nan=False)
        known = {**(table.schema.metadata or {}), KEY: text.encode()}
        pq.write_table(table.replace_schema_metadata(known), path)


def framed(columns: Mapping[str, Any]) -> pd.DataFrame:
    """The table of a record from some of its columns: the others are filled with what stands for
    nothing, rows are in order, and the first begins at 0 s."""
    table = pd.DataFrame({name: columns.get(name, _EMPTY.get(name)) for name in COLUMNS})
    kinds = pd.CategoricalDtype(list(OPERATIONS))
    table = table.astype({**COLUMNS, "operation": kinds})
    table = table.sort_values("start_s", kind="stable", ignore_index=True)
    if len(table):
        table["start_s"] -= table["start_s"].iloc[0]
    return table


def joined(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The table of a record from parts of it, each with some of its columns."""
    rows = pd.concat(parts, ignore_index=True)
    rows = rows.fillna({name: of for name, of in _EMPTY.items() if isinstance(of, int)})
    return framed({str(name): rows[name] for name in rows})


def read_parquet(path: Path) -> Record:
    """A record from the file that `Record.write` wrote. Raises an InputError if it is none."""
    source = str(path)
    try:
        table = pq.read_table(path)
        about = json.loads((table.schema.metadata or {}).get(KEY, b"{}"))
        rows = table.to_pandas(ignore_metadata=True)
    except (OSError, ValueError, RecursionError, pa.ArrowException) as error:
        why = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        refuse("RECORD", f"must be a record: {why}", repr(source), "Record it again.", source)
    version = about.pop("format", None) if isinstance(about, dict) else None
    if version != FORMAT:
        value = "none" if version is None else f"format {version}"
        rule, remedy = f"must be a record of format {FORMAT}", "Record it with this version."
        refuse("RECORD", rule, value, remedy, source)
    if missing := [name for name in COLUMNS if name not in rows]:
        rule = f"must have the columns {', '.join(COLUMNS)}"
        refuse("RECORD", rule, f"no {', no '.join(missing)}", "Record it again.", source)
    try:
        framed_rows = framed({name: rows[name].to_numpy() for name in COLUMNS})
    except (ValueError, TypeError) as error:
        rule, remedy = "must have columns of the types of a record", "Record it again."
        refuse("RECORD", rule, str(error).partition("\n")[0][:100], remedy, source)
    return Record(framed_rows, about, source)
