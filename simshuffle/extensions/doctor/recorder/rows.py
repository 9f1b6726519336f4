"""A row of what a training did, as it is written by the process that did it."""

from __future__ import annotations

import struct

OPERATIONS = {
    # in the process of a rank
    "wait": "for the next batch, from when it is asked for until it is there",
    "step": "from a batch that is there until the next is asked for",
    "copy": "of a batch to the device",
    "forward": "pass of the network",
    "backward": "pass, with what of the allreduce it does not hide",
    "optimizer": "step",
    "allreduce": "and other collectives that the process waits for",
    "pin": "a batch, in the thread that does that",
    "gil": "waiting for the interpreter, of a thread that asks for it now and then",
    # in a worker, or in the process of the rank where it has none
    "fetch": "a batch: its samples, and putting them together",
    "sample": "by its index: the data set's own __getitem__",
    "open": "files, or requests to a server",
    "read": "bytes from them",
    "decode": "images, sound or compressed bytes",
    "transform": "the rest of samples: what they take beside opening, reading, decoding and locks",
    "lock": "waiting for other processes or threads that hold one",
    "collate": "samples to a batch",
    "send": "a batch to the process of the rank",
    # of these or beside them
    "repeat": "calls that open, connect or parse anew what they just did; a part of the others",
    "order": "indices of batches from the sampler, in the process of the rank; a part of the wait",
    "between": "the end of an epoch and the start of the next",
}
"""What a row may be of, and what it then says. `open`, `read`, `decode`, `transform`
and `lock` are the sums over the samples of a batch; they add up to the time of its
samples, and with `collate` to `fetch`.
"""
CODES = {name: code for code, name in enumerate(OPERATIONS)}
"""By the name of an operation, the number that stands for it in a row."""

FIELDS = (
    "rank",  # of the training; -1 if not known when the row was written
    "loader",  # which of the process's loaders, by when they were first asked; -1 for none
    "epoch",  # how many times that loader had been gone through before
    "batch",  # number in its epoch, in the order of the loader; -1 for none
    "worker",  # that did it; -1 for the process of the rank itself
    "operation",  # its code
    "start",  # ns of the clock time.perf_counter_ns, which all processes of a host share
    "duration",  # ns
    "cpu",  # ns of it in which the thread computed; -1 if not known
    "queued",  # ns of it in which the thread had no core to compute on; -1 if not known
    "count",  # samples, files or reads
    "nbytes",  # read, opened, copied or summed; 0 if not known
    "disk",  # of ``nbytes``, those that came from the device below a file system; -1 if not known
    "sample",  # index of the sample; -1 for none
)
"""What a row holds, in this order."""
ROW = struct.Struct("<ihiihhqqqqqqqq")
"""How it is packed."""
SUFFIX = ".rows"
"""What the names of files of rows end with. One for each process: `PID.rows`, rows one
after another; a last one that is cut is left out. Beside it `PID.json`: what is known
of the process.
"""
