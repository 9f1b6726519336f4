"""The verb ``simshuffle machine probe``: what a sample costs this host, or what its
storage or network gives.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from simshuffle.cli.help import command
from simshuffle.errors import refuse
from simshuffle.study.options import COMMAND_LINE, Argument, Option

app = typer.Typer()


@command(
    app,
    "Describe",
    "simshuffle machine probe",
    "simshuffle machine probe imagenet/train --exchange > costs.yaml",
    "simshuffle machine probe --storage /scratch --limit 4GB > storage.yaml",
)
def probe(
    folder: Annotated[
        Path | None,
        Argument(
            "FOLDER",
            "Folder of your data set or of a part of it. Default: photographs that the probe"
            " makes.",
        ),
    ] = None,
    *,
    exchange: Annotated[
        bool,
        Option(
            "",
            "Also write the costs of an exchange, for a scenario that does not sweep exchanges.",
        ),
    ] = False,
    storage: Annotated[
        Path | None,
        Option(
            "FOLDER",
            "Measure the file system of this folder instead: opens and bytes per second by readers,"
            " past the page cache. The probe makes a folder there, and removes it.",
        ),
    ] = None,
    network: Annotated[
        int | None,
        Option(
            "N",
            "Measure an allreduce of gloo between N processes on this host instead. Between hosts,"
            " run simshuffle.train.gloo_times with torchrun, and calibrate its output.",
            low=2,
            high=64,
        ),
    ] = None,
    limit: Annotated[
        str, Option("SIZE", "With --storage: bytes to write at most.")
    ] = "1 GB",
    seconds: Annotated[
        float,
        Option("S", "With --storage: about how long to measure.", low=2.0, high=3600.0),
    ] = 30.0,
) -> None:
    """Measure what reading, decoding, pickling and writing a sample of FOLDER costs
    this host, or what its storage or network gives, and print it as a fragment that a
    scenario includes.
    """
    if (
        sum((folder is not None or exchange, storage is not None, network is not None))
        > 1
    ):
        rule = "a probe measures either samples, or storage, or network"
        refuse(
            "--storage, --network",
            rule,
            "several",
            "Give one of the three.",
            COMMAND_LINE,
        )
    if storage is not None:
        fragment = storage_fragment(storage, limit, seconds)
    elif network is not None:
        fragment = network_fragment(network)
    else:
        from simshuffle.extensions.calibration.probe.samples import probe as measure

        fragment = measure(folder).to_yaml(exchange=exchange)
    typer.echo(fragment, nl=False)


def storage_fragment(folder: Path, limit: str, seconds: float) -> str:
    """Return the fragment, as YAML, of a file system that is measured for about
    ``seconds`` s.

    The files that it writes are removed again.

    Args:
        folder: a folder on the file system.
        limit: bytes written at most, with a unit.
        seconds: about how long to measure.

    Raises:
        InputError: the limit is no size, or the folder cannot be measured.
    """
    from simshuffle.cli.new_questions import quantity_rule
    from simshuffle.extensions.calibration.probe.storage import probe_storage
    from simshuffle.spec.units import Dimension, parse_quantity

    if rule := quantity_rule(limit, Dimension.NBYTES):
        refuse("--limit", rule, repr(limit), "For example 1GB.", COMMAND_LINE)
    return probe_storage(
        folder, parse_quantity(limit, Dimension.NBYTES), seconds
    ).to_yaml()


def network_fragment(ranks: int) -> str:
    """Return the fragment, as YAML, of an allreduce that gloo runs between ``ranks``
    processes on this host, by the law of a ring.

    Raises:
        InputError: torch is missing, a process fails, or nothing could be fitted.
    """
    import tempfile

    from simshuffle.extensions.calibration.calibrate.study import STUDY, request
    from simshuffle.extensions.calibration.calibrate.verb import CalibrationOptions
    from simshuffle.study import engine

    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, f"gloo-{ranks}-processes.txt")
        path.write_bytes(time_gloo(ranks))
        result: Any = engine.run(STUDY, request(CalibrationOptions(files=(path,))))
        return str(result.to_yaml())


def time_gloo(ranks: int) -> bytes:
    """Return what `simshuffle.train.gloo_times` prints in ``ranks`` processes on this
    host: a table as of nccl-tests.

    Raises:
        InputError: torch is missing, or a process fails.
    """
    import importlib.util
    import subprocess
    import sys

    if importlib.util.find_spec("torch") is None:
        remedy = "pip install 'simshuffle[train]'."
        refuse("--network", "needs torch", "no torch", remedy, COMMAND_LINE)
    launch_arguments = [
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
    ]
    command = [
        sys.executable,
        "-m",
        *launch_arguments,
        "-m",
        "simshuffle.train.gloo_times",
    ]
    process = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
    if process.returncode:
        last_lines = process.stderr.decode(errors="replace").strip().splitlines()[-1:]
        remedy = (
            "Run simshuffle.train.gloo_times with torchrun to see its whole output."
        )
        refuse(
            "--network",
            "the processes of gloo must end without an error",
            " ".join(last_lines),
            remedy,
            COMMAND_LINE,
        )
    return process.stdout
