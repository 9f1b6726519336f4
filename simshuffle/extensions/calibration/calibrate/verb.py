"""The verb ``simshuffle machine calibrate``, and its options: measurements, and how to
read them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from simshuffle.study.options import Argument, Option, Options, words
from simshuffle.study.verb import Verb

if TYPE_CHECKING:
    from simshuffle.study.study import Result


@dataclass(frozen=True, kw_only=True)
class CalibrationOptions(Options):
    """Fit the parameters of a scenario to measurements.

    Latencies, bandwidths, rates, compute times and jitter, as a fragment that a
    scenario includes.
    """

    files: Annotated[
        tuple[Path, ...],
        Argument(
            "FILE",
            "Output of nccl-tests, OSU, PICO, CRAB, IOR or mdtest, or an epoch log (CSV).",
            many=True,
        ),
    ]
    kind: Annotated[
        str | None,
        Option(
            "KIND",
            "Kind of the files: nccl-tests, nccl-json, osu, ior, mdtest, epochs, pico, pico-raw or"
            " crab.",
            flag="--as",
            complete=words(
                place="simshuffle.extensions.calibration.calibrate.readers:READERS"
            ),
        ),
    ] = None
    fit_up_to: Annotated[
        int | None,
        Option(
            "RANKS",
            "Fit measurements of at most RANKS ranks; predict the others.",
            low=1,
        ),
    ] = None
    epochs: Annotated[
        str,
        Option(
            "WHICH",
            "Epoch log: steady (from the second on) or all.",
            complete=words("steady", "all"),
        ),
    ] = "steady"
    model: Annotated[
        tuple[str, ...],
        Option(
            "[LOGGED=]ENTRY",
            "Epoch log: the catalog's entry for a model.",
            many=True,
            complete=words(place="simshuffle.spec.library:model_names"),
        ),
    ] = ()
    accelerator: Annotated[
        str | None, Option("NAME", "Epoch log: accelerator, the key of the step times.")
    ] = None
    gpus_per_host: Annotated[
        int,
        Option("N", "GPUs of a host, for an epoch log without a column hosts.", low=1),
    ] = 4
    ranks: Annotated[
        int | None,
        Option(
            "N",
            "Ranks, for files that do not state them (OSU, CRAB, a cut list of devices).",
            low=2,
        ),
    ] = None
    hosts: Annotated[
        int | None, Option("N", "Hosts, for files that do not state them.", low=1)
    ] = None
    collective: Annotated[
        str | None,
        Option(
            "WHICH",
            "Collective that nccl-tests ran, for files that do not name it: all_reduce or"
            " all_to_all.",
            complete=words("all_reduce", "all_to_all"),
        ),
    ] = None
    storage: Annotated[
        str,
        Option(
            "WHICH",
            "What IOR and mdtest measured: pfs or ssd.",
            complete=words("pfs", "ssd"),
        ),
    ] = "pfs"


def describe_fragments(
    result: Result, folder: Path, options: CalibrationOptions
) -> Iterable[str]:
    """Yield where the fragments lie, for scenarios to include."""
    from simshuffle.extensions.calibration.calibrate.text import FRAGMENT, MODELS_FOLDER  # noqa: PLC0415 - YAML

    for name in (
        FRAGMENT,
        *(f"{MODELS_FOLDER}/{name}" for name in result.files_in[MODELS_FOLDER]),
    ):
        yield f"Include in a scenario: {folder / name}"


VERBS = (
    Verb(
        "machine calibrate",
        CalibrationOptions,
        "simshuffle.extensions.calibration.calibrate.study:request",
        examples=(
            "simshuffle machine calibrate nccl.txt --out nccl",
            "simshuffle machine calibrate osu-alltoall.txt --ranks 8 --hosts 8 --to latex",
        ),
        group="Describe",
        kinds={"calibration": "simshuffle.extensions.calibration.calibrate.study"},
        function="calibrate",
        noun="calibration",
        done="fitted",
        after=describe_fragments,
    ),
)
