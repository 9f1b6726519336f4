"""Hold the record of a training: a table of its operations, and facts on its host and
loaders.
"""

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
"""Key of a Parquet file's metadata that holds `Record.about`, as JSON."""
FORMAT = 1
"""Format of that JSON; another one is refused."""
COLUMNS: Mapping[str, str] = {
    "rank": "int32",  # 0 where there is one rank
    "loader": "int16",  # index of the rank's loader; -1 for none
    "epoch": "int32",  # from 0, of that loader
    "batch": "int64",  # from 0 in its epoch; -1 for none
    "worker": "int16",  # -1 for the process of the rank itself
    "operation": "category",  # see `OPERATIONS`
    "start_s": "float64",  # from the first row on; the same clock for all ranks of a host
    "seconds": "float64",  # duration
    "cpu_s": "float64",  # s of it on a core; nan if not known
    "queued_s": "float64",  # s of it waiting for a core; nan if not known
    "count": "int64",  # samples, files or reads
    "nbytes": "int64",  # bytes read, opened, copied or summed; 0 if not known
    "disk_nbytes": "float64",  # bytes of these from the device; nan if not known
    "sample": "int64",  # index of the sample; -1 for none
}
"""Columns of the table, and their types. `make_rows` fills missing ones."""
_EMPTY: Mapping[str, Any] = {
    **{
        "rank": 0,
        "loader": 0,
        "epoch": 0,
        "batch": -1,
        "worker": -1,
        "count": 0,
        "nbytes": 0,
    },
    **{"cpu_s": np.nan, "queued_s": np.nan, "disk_nbytes": np.nan, "sample": -1},
}


@dataclass(frozen=True)
class Record:
    """The record of a training.

    ``about`` holds these facts, and leaves out those that are not known:

    - ``made_by``: 'simshuffle', 'kineto', 'traceml', 'ray', 'dlio' or 'chakra';
    - ``command``: its words; ``exit_status`` of the command; ``seconds`` that it took;
    - ``ranks``: M of the training; the rows may be of fewer;
    - ``loaders``: for each a mapping, with batch_size, num_workers, prefetch_factor, pin_memory,
      persistent_workers, in_order, samples (of the data set), sampler and dataset (names of
      classes), drop_last, made_at (file, function and line of the script that makes it);
    - ``host``: name, cores (that the process may use), all_cores, memory_nbytes, others (cores that
      other programs had in the mean), own (cores that the process of the first rank computed on);
    - ``places``: where in the code fetches and steps were seen, 50 times a second, most often
      first: operation, file, function, line, calls (a function of a library, or ''), transforms
      (whether a transform was at work), count;
    - ``calls``: lines that open, connect or parse for samples, the longest first: function, kind,
      file, caller, line, calls, seconds, anew (calls for what they were just made for), anew_s;
    - ``threads``: of torch in the process of a rank; ``threads_set_at``: file, function and line
      that last set these; ``torch``: its version; ``device``: as torch
      names it;
    - ``model``: parameters, gradient_nbytes, buckets (bytes of each, in the order of the trace);
    - ``files``: different ones that were opened; ``files_nbytes``: of these;
    - ``changed``, ``unchanged``: sentences on changes to the training that were made or could not
      be; ``stopped``: true if the training was ended when its time was over;
    - ``notes``: sentences on what could not be seen.
    """

    rows: pd.DataFrame  # a row for each timed operation, columns `COLUMNS`, by start_s
    about: Mapping[str, Any]  # facts, see above
    source: str  # file or folder of the record

    def rows_of(self, *operations: str) -> pd.DataFrame:
        """Return the rows of some operations, in the order of ``rows``."""
        return self.rows[self.rows["operation"].isin(operations)]

    def write(self, path: Path) -> None:
        """Write the record to a Parquet file, its facts as JSON in the metadata; not
        ``source``. A file at the path is replaced.

        Raises:
            ValueError: a fact is nan or infinite.
        """
        table = pa.Table.from_pandas(self.rows, preserve_index=False)
        text = json.dumps({"format": FORMAT, **self.about}, allow_nan=False)
        metadata = {**(table.schema.metadata or {}), KEY: text.encode()}
        pq.write_table(table.replace_schema_metadata(metadata), path)


def make_rows(columns: Mapping[str, Any]) -> pd.DataFrame:
    """Return the table of a record, `COLUMNS`, from some of its columns, ordered by
    start_s.

    Missing columns are filled with rank 0, loader 0, epoch 0, and else with what stands
    for "not known" (see `COLUMNS`). The columns operation, start_s and seconds must be
    there. Times are shifted so that the first row begins at 0 s. Further columns are
    dropped.

    Raises:
        ValueError, TypeError: a column cannot be of its type in `COLUMNS`.
    """
    table = pd.DataFrame(
        {name: columns.get(name, _EMPTY.get(name)) for name in COLUMNS}
    )
    operations = pd.CategoricalDtype(list(OPERATIONS))
    table = table.astype({**COLUMNS, "operation": operations})
    table = table.sort_values("start_s", kind="stable", ignore_index=True)
    if len(table):
        table["start_s"] -= table["start_s"].iloc[0]
    return table


def join_rows(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Join parts of a record, each with some of its columns, to its table, as
    `make_rows` makes it: by start_s, from 0 s. There must be a part.
    """
    rows = pd.concat(parts, ignore_index=True)
    empty_counts = {
        name: value for name, value in _EMPTY.items() if isinstance(value, int)
    }
    rows = rows.fillna(empty_counts)
    return make_rows({str(name): rows[name] for name in rows})


def read_parquet(path: Path) -> Record:
    """Read a record from a file that `Record.write` wrote; further columns are dropped.

    Rows are ordered by start_s, from 0 s.

    Raises:
        InputError: the file cannot be read, is no record or of another `FORMAT`, or
            lacks a column or the type of one.
    """
    source = str(path)
    try:
        table = pq.read_table(path)
        about = json.loads((table.schema.metadata or {}).get(KEY, b"{}"))
        rows = table.to_pandas(ignore_metadata=True)
    except (OSError, ValueError, RecursionError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        refuse(
            "RECORD",
            f"must be a record: {reason}",
            repr(source),
            "Record it again.",
            source,
        )
    version = about.pop("format", None) if isinstance(about, dict) else None
    if version != FORMAT:
        value = "none" if version is None else f"format {version}"
        rule = f"must be a record of format {FORMAT}"
        remedy = "Record it with this version."
        refuse("RECORD", rule, value, remedy, source)
    if missing := [name for name in COLUMNS if name not in rows]:
        rule = f"must have the columns {', '.join(COLUMNS)}"
        refuse(
            "RECORD", rule, f"no {', no '.join(missing)}", "Record it again.", source
        )
    try:
        checked_rows = make_rows({name: rows[name].to_numpy() for name in COLUMNS})
    except (ValueError, TypeError) as error:
        rule = "must have columns of the types of a record"
        reason = str(error).partition("\n")[0][:100]
        refuse("RECORD", rule, reason, "Record it again.", source)
    return Record(checked_rows, about, source)
