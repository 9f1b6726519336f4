"""Scripts that are recorded as a training is, and take no time: they write the rows that one of so
many workers, with a fetch and a step of so many seconds, would have left behind."""

TRAINING = """
import json, os, pathlib, sys
from simshuffle.extensions.doctor.recorder.rows import CODES, FIELDS, ROW

FETCH, STEP, BATCHES, WORKERS, PREFETCH = 0.4, 0.1, 240, 2, 2
changes = json.loads(os.environ.get("SIMSHUFFLE_RECORD_CHANGES", "{}"))
rows = pathlib.Path(os.environ["SIMSHUFFLE_RECORD"])
workers = changes.get("loader", {}).get("num_workers", WORKERS)
replayed = changes.get("replay", BATCHES)
ended, asked, packed = [0.0] * workers, [0.0] * BATCHES, []

def row(batch, worker, operation, start, seconds, cpu):
    values = dict.fromkeys(FIELDS, -1) | {
        "rank": 0, "loader": 0, "epoch": 0, "batch": batch, "worker": worker, "count": 8,
        "operation": CODES[operation], "nbytes": 0, "start": int(1e9 * start),
        "duration": int(1e9 * seconds), "cpu": int(1e9 * cpu), "queued": 0,
    }
    packed.append(ROW.pack(*(values[name] for name in FIELDS)))

now = 0.0
for batch in range(BATCHES):
    worker = batch % workers
    begin = max(ended[worker], asked[batch])
    fetch = FETCH if batch < replayed else 0.0
    ended[worker] = begin + fetch
    row(batch, worker, "fetch", begin, fetch, fetch / 8)
    row(batch, worker, "decode", begin, fetch, fetch / 8)
    row(batch, -1, "wait", now, max(ended[worker] - now, 0.0), 0.0)
    now = max(ended[worker], now)
    row(batch, -1, "step", now, STEP, STEP / 8)
    if batch + workers * PREFETCH < BATCHES:
        asked[batch + workers * PREFETCH] = now
    now += STEP
pid = os.getpid()
(rows / f"{pid}.rows").write_bytes(b"".join(packed))
settings = {
    "num_workers": workers, "prefetch_factor": PREFETCH, "in_order": True, "batch_size": 8,
    "persistent_workers": True,
}
facts = {"pid": pid, "parent": os.getppid(), "torch": "2.0", "loaders": [settings],
         "host": {"name": "here", "cores": 8, "memory_nbytes": 10**9}}
(rows / f"{pid}.json").write_text(json.dumps(facts))
print("trained", sys.argv[1:], file=sys.stderr)
"""
"""Of 240 batches: each takes 0.4 s / 2 workers = 0.2 s, half of it waiting; with 4 workers and more
0.1 s, which is the step."""
