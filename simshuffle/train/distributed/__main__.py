"""torchrun --nproc-per-node M -m simshuffle.train.distributed STUDY: the runs of a study on real
ranks, with the usual tables."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from simshuffle.errors import InputError, Problem, SimshuffleError
from simshuffle.results.folders import check_place, meta_of
from simshuffle.spec.library import read_value
from simshuffle.studies.training.study import STUDY, Trainings
from simshuffle.study import engine
from simshuffle.study.cell import digest_of
from simshuffle.study.store import CELLS, Disk
from simshuffle.study.study import Request, fingerprint
from simshuffle.train.distributed.cell import RankCell
from simshuffle.train.distributed.group import Ranks, alike, collectively, leave
from simshuffle.train.distributed.transport import TRANSPORTS
from simshuffle.train.shuffling import request
from simshuffle.train.study import Study, load_study

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="simshuffle.train.distributed", description=__doc__)
    parser.add_argument("study", help="a study file, or a name below studies/")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a key of the study, such as seeds=1",
    )
    parser.add_argument(
        "--out", type=Path, help="result folder; the default is results/ranks-NAME-FINGERPRINT"
    )
    parser.add_argument(
        "--storage",
        type=Path,
        help="folder on the local storage for the shards; the default is memory",
    )
    parser.add_argument("--transport", choices=TRANSPORTS, default="isend")
    parser.add_argument(
        "--backend",
        default="gloo",
        help="of torch.distributed; with nccl every rank trains on a GPU",
    )
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Run as one of the ranks that torchrun started; returns the exit code."""
    chosen = arguments(given)
    if "RANK" not in os.environ:
        problem = Problem(
            "",
            "must be started by torchrun",
            "",
            "torchrun --standalone --nproc-per-node 2 -m simshuffle.train.distributed ...",
        )
        return _refused(InputError(problem, "simshuffle.train.distributed"))
    signal.signal(signal.SIGTERM, _stop)  # torchrun ends the others so if one fails
    device = torch.device("cpu")
    if chosen.backend == "nccl":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    try:
        dist.init_process_group(chosen.backend)
        _run_study(chosen, device)
    except InputError as error:
        return _refused(error)
    except SimshuffleError as error:
        sys.stderr.write(f"{error}\n")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _refused(error: InputError) -> int:
    if int(os.environ.get("RANK", "0")) == 0:
        sys.stderr.write(f"{error}\n")
    return BAD_INPUT


def _run_study(chosen: argparse.Namespace, device: torch.device) -> None:
    """Every run of the study, one after the other, those that are in the result folder excepted."""
    ranks = Ranks.current()
    values: dict[str, Any] = {"world_size": ranks.world_size}
    for text in chosen.set:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(
                Problem("--set", "is written KEY=VALUE", repr(text), "For example --set seeds=1."),
                "command line",
            )
        values[key] = read_value(value, f"--set {key}")
    asked = _request(load_study(chosen.study, values), chosen, ranks.world_size, device)
    wanted = fingerprint(STUDY, asked)
    alike(
        ranks,
        {"study": wanted},
        {"study": "Give every rank the same study file and the same versions."},
    )
    folder: Path = chosen.out or Path("results") / f"ranks-{asked.name.replace('/', '-')}-{wanted}"
    store, first = Disk((folder.parent / CELLS).absolute()), ranks.rank == 0
    again = meta_of(folder).get("fingerprint") == wanted
    collectively(ranks, lambda: check_place(folder, replace=again) if first else None)
    for cell in asked.values.cells.values():
        digest = digest_of(cell)
        there = "there" if first and store.has(digest, cell.parts) else ""
        if not any(ranks.gather_texts(there)):
            outcome = cell.run(lambda share: None)
            if first:
                store.put(digest, outcome)
    if first:
        result = engine.run(STUDY, asked, store=store)
        result.save(folder, replace=again)
        text = "\n".join(str(part) for part in result.parts())
        sys.stdout.write(f"{text}\nTables: {folder}\n")


def _request(
    study: Study, chosen: argparse.Namespace, world_size: int, device: torch.device
) -> Request[Trainings]:
    """What is asked of the study, with real ranks in the place of emulated ones."""
    emulated = request(study, device.type)
    real = {"transport": chosen.transport, "storage": chosen.storage, "torch_device": str(device)}
    cells = {name: RankCell(**vars(cell), **real) for name, cell in emulated.values.cells.items()}
    where = f"{device.type}, {world_size} processes"
    asked = {**emulated.asked, "ranks": world_size, "transport": chosen.transport}
    return replace(
        emulated, values=replace(emulated.values, cells=cells, device=where), asked=asked
    )


if __name__ == "__main__":
    leave(main())
