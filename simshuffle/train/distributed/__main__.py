"""torchrun --nproc-per-node M -m simshuffle.train.distributed STUDY: the runs of a
study on real ranks, with the usual tables.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from simshuffle.errors import InputError, Problem, SimshuffleError, refuse
from simshuffle.report.folders import check_place, meta_of
from simshuffle.spec.library import read_value
from simshuffle.studies.training.study import STUDY
from simshuffle.study.store import CELLS, Disk
from simshuffle.study.study import fingerprint
from simshuffle.train.distributed.group import RankGroup, leave, run_collectively
from simshuffle.train.distributed.study import request_on_ranks, run_on_ranks
from simshuffle.train.distributed.transport import TRANSPORTS
from simshuffle.train.shuffling import request
from simshuffle.train.study import load_study

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line ``argv``; None stands for the arguments of the process.

    A wrong command line ends the process with status 2, and ``--help`` with 0.
    """
    parser = argparse.ArgumentParser(
        prog="simshuffle.train.distributed", description=__doc__
    )
    parser.add_argument("study", help="a study file, or a name below studies/")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a key of the study, such as seeds=1",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="result folder; the default is results/ranks-NAME-FINGERPRINT",
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
        help="backend of torch.distributed; with nccl every rank trains on a GPU",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Train the study as one of the ranks that torchrun started; return the exit
    status.

    Side effects: SIGTERM raises KeyboardInterrupt from now on; and the process group
    stays open until `leave` closes it.

    Args:
        argv: the command line; None stands for the arguments of the process.

    Returns:
        0; `FAILED`, `BAD_INPUT` or `INTERRUPTED`. Errors are written to standard error:
        wrong input by rank 0 alone, failures by every rank.
    """
    options = parse_arguments(argv)
    if "RANK" not in os.environ:
        problem = Problem(
            "",
            "must be started by torchrun",
            "",
            "Run torchrun --standalone --nproc-per-node 2 -m simshuffle.train.distributed ...",
        )
        return _report_input_error(InputError(problem, "simshuffle.train.distributed"))
    signal.signal(signal.SIGTERM, _stop)  # torchrun ends the others so if one fails
    device = torch.device("cpu")
    if options.backend == "nccl":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    try:
        dist.init_process_group(options.backend)
        _run_study(options, device)
    except InputError as error:
        return _report_input_error(error)
    except SimshuffleError as error:
        sys.stderr.write(f"{error}\n")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _stop(number: int, frame: object) -> None:
    """Handle a signal: raise KeyboardInterrupt."""
    raise KeyboardInterrupt


def _report_input_error(error: InputError) -> int:
    """Write an input error to standard error, on rank 0 alone; return `BAD_INPUT`."""
    if int(os.environ.get("RANK", "0")) == 0:
        sys.stderr.write(f"{error}\n")
    return BAD_INPUT


def _run_study(options: argparse.Namespace, device: torch.device) -> None:
    """Train every run of the study that is not stored yet; then save the result and
    print its tables on rank 0.

    Stored runs are those that rank 0 finds in the folder `.cells` beside the result
    folder, where it also stores each new run. An earlier result of the same study in
    the result folder is replaced.

    Args:
        options: the parsed command line.
        device: the device on which this rank trains.

    Raises:
        InputError: an option or the study is wrong, the ranks' studies differ, or a run
            cannot be trained.
        ExchangeError: samples could not be exchanged; or on all ranks, if the result
            folder holds anything else or cannot be written.
    """
    ranks = RankGroup.current()
    values: dict[str, Any] = {"world_size": ranks.world_size}
    for text in options.set:
        key, equals, value = text.partition("=")
        if not equals:
            rule = "must be written KEY=VALUE"
            remedy = "For example --set seeds=1."
            refuse("--set", rule, repr(text), remedy, "command line")
        values[key] = read_value(value, f"--set {key}")
    emulated = request(load_study(options.study, values), device.type)
    real = request_on_ranks(
        emulated, ranks.world_size, options.transport, options.storage, device
    )
    mark = fingerprint(STUDY, real)
    folder: Path = (
        options.out or Path("results") / f"ranks-{real.name.replace('/', '-')}-{mark}"
    )
    replaces = meta_of(folder).get("fingerprint") == mark
    is_first = ranks.rank == 0
    run_collectively(
        ranks, lambda: check_place(folder, replace=replaces) if is_first else None
    )
    result = run_on_ranks(ranks, real, Disk((folder.parent / CELLS).absolute()))
    if result is not None:
        result.save(folder, replace=replaces)
        text = "\n".join(str(part) for part in result.parts())
        sys.stdout.write(f"{text}\nTables: {folder}\n")


if __name__ == "__main__":
    leave(main())
