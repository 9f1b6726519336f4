"""Makes the traces beside it: two ranks of DDP over gloo on one host, of which torch.profiler
records three steps of a schedule; of their events those of the passes are kept."""

import gzip
import json
import os
import tempfile
from pathlib import Path

import torch
from torch import distributed, multiprocessing, nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, TensorDataset

HERE = Path(__file__).parent
KEPT = ("autograd::engine", "c10d::", "torch.distributed.ddp", "aten::linear", "aten::mm")


def train(rank: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29544"}
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    net = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(48, 64), torch.randint(0, 4, (48,)))
    steps = schedule(wait=1, warmup=1, active=3, repeat=1)
    kinds = [ProfilerActivity.CPU]
    with profile(activities=kinds, schedule=steps, record_shapes=True) as profiler:
        for samples, labels in DataLoader(data, batch_size=8, num_workers=1):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(samples), labels).backward()
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(f"{folder}/{rank}.json")
    distributed.destroy_process_group()


def trimmed(trace: dict) -> dict:
    """What is left of a trace: events by their names, with what tells sizes."""
    events = [
        {key: each[key] for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur") if key in each}
        | {"args": {key: of for key, of in each.get("args", {}).items() if key in ARGUMENTS}}
        for each in trace["traceEvents"]
        if each.get("cat") in {"user_annotation", "fwdbwd"} or each["name"].startswith(KEPT)
    ]
    return trace | {"traceEvents": events}


ARGUMENTS = ("Input Dims", "Input type", "finished")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(train, args=(folder,), nprocs=2)
        for rank in (0, 1):
            found = trimmed(json.loads(Path(folder, f"{rank}.json").read_text()))
            packed = gzip.compress(json.dumps(found).encode(), mtime=0)
            (HERE / f"ddp-{rank}.pt.trace.json.gz").write_bytes(packed)
