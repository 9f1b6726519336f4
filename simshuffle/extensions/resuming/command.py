"""The verb audit: what a loader of one's own loses and repeats when it is killed and goes on."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simshuffle.cli.common import (
    AsJson,
    detail,
    print_answer,
    share_progress,
    split_command,
    split_formats,
)
from simshuffle.cli.help import command
from simshuffle.errors import refuse
from simshuffle.study.options import COMMAND_LINE, Argument, Option, between_commas

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simshuffle.extensions.resuming.auditing import AuditRequest
    from simshuffle.extensions.resuming.counted import Counted
    from simshuffle.extensions.resuming.script import Command

app = typer.Typer()
TRIES, SAMPLES, SHARDS = 5, 240, 8
"""Crash points where none is named, samples, and shards; by default."""


def _ranks(flag: str, text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if found is None or not int(found[1]) * int(found[2]):
        rule, remedy = "must be NODESxRANKS, both from 1 on", f"For example {flag} 2x4."
        refuse(flag, rule, repr(text), remedy, COMMAND_LINE)
    return int(found[1]), int(found[2])


def _pair(flag: str, least: int) -> Callable[[str], tuple[int, int]]:
    """What reads a number, or one before and one after."""

    def read(text: str) -> tuple[int, int]:
        found = re.fullmatch(r"(\d{1,7})(?::(\d{1,7}))?", text)
        numbers = [int(of) for of in found.groups(found[1])] if found else []
        if not numbers or min(numbers) < least:
            rule = f"must be a number from {least} on, or one before and one after"
            refuse(flag, rule, repr(text), f"For example {flag} 8:6.", COMMAND_LINE)
        return numbers[0], numbers[1]

    return read


def _points(texts: list[str]) -> list[tuple[int, int]]:
    points = []
    for text in between_commas(texts):
        found = re.fullmatch(r"(?:(\d{1,9}):)?(\d{1,9})", text)
        if found is None or not int(found[2]):
            rule, remedy = "must be a step from 1 on, or EPOCH:STEP", "For example 12, or 1:12."
            refuse("--at", rule, repr(text), remedy, COMMAND_LINE)
        points.append((int(found[1] or 0), int(found[2])))
    return points


Given = Annotated[
    list[str],
    Argument(
        "-- COMMAND",
        "Behind --: python [OPTIONS] SCRIPT.py [ARGUMENTS], of any environment. The script has"
        " make(run), which returns a loader of numbers of samples for run.rank; state(loader); and"
        " resume(run, states), with the states of all ranks.",
        many=True,
    ),
]
From = Annotated[
    tuple[int, int] | None,
    Option(
        "NODESxRANKS", "Ranks that are killed. Default: 1x2.", read=lambda of: _ranks("--from", of)
    ),
]
To = Annotated[
    list[str] | None,
    Option(
        "NODESxRANKS|FORMAT",
        "Ranks that go on. Default: the same, and one of a node less. Or how the tables are printed"
        " on standard output, and nothing else: latex (booktabs) or markdown.",
        many=True,
    ),
]
Workers = Annotated[
    tuple[int, int] | None,
    Option("N[:N]", "Workers of a rank, before and after. Default: 2.", read=_pair("--workers", 0)),
]
Batch = Annotated[
    tuple[int, int] | None,
    Option(
        "N[:N]",
        "Samples of a rank's batch, before and after. Default: 4.",
        read=_pair("--batch-size", 1),
    ),
]
At = Annotated[
    list[tuple[int, int]] | None,
    Option(
        "STEP",
        "Save the state after this step of the first epoch; 1:12 is step 12 of epoch 1, from 0.",
        read=_points,
        many=True,
    ),
]


Tries = Annotated[
    int | None, Option("N", "Steps that are drawn at random. Default: 5, or none with --at.", low=0)
]


@command(
    app,
    "Results",
    "simshuffle study audit -- python my_loader.py",
    "simshuffle study audit --from 2x4 --to 1x4 --workers 8:6 -- python load.py",
    "simshuffle study audit --at 3 --at 1:7 --json -- python my_loader.py --fast",
    runs=True,
)
def audit(
    words: Given,
    from_: From = None,
    to: To = None,
    workers: Workers = None,
    batch_size: Batch = None,
    samples: Annotated[int, Option("N", "Of the set.", low=1)] = SAMPLES,
    shards: Annotated[int | None, Option("S", "Files of the set. Default: 8.", low=1)] = None,
    samples_per_shard: Annotated[
        int | None, Option("N", "Samples of a file, in place of --shards.", low=1)
    ] = None,
    epochs: Annotated[int, Option("N", "Of the run.", low=1)] = 2,
    at: At = None,
    try_: Tries = None,
    seed: Annotated[int, Option("N", "Of the loader, and of the steps.", low=0)] = 0,
    seconds: Annotated[float, Option("S", "What has not ended after S s hangs.", low=0.1)] = 60.0,
    out: Annotated[Path | None, Option("FOLDER", "Result folder; the default is none.")] = None,
    force: Annotated[bool, Option("", "Replace the result that is in the result folder.")] = False,
    json: AsJson = False,
) -> None:
    """Say what a loader loses and repeats when it is killed.

    Forks real ranks of a script of yours, kills them in the middle of an epoch, goes on with
    others, and counts. What the script prints is shown with -v alone. Exit status: 0, or 1 where
    samples are lost, come again, or the loader refuses or hangs."""
    from simshuffle.extensions.resuming.auditing import AuditRequest
    from simshuffle.extensions.resuming.counted import FILES
    from simshuffle.extensions.resuming.script import Command
    from simshuffle.report.folders import check_place
    from simshuffle.workload.orders.order import Readers

    ranks_after, to_format = split_formats(to or ())
    after = [_ranks("--to", word) for word in ranks_after]
    command = Command.of(_command_in(words))
    if out is not None:
        check_place(out, replace=force, known_names=FILES)
    before = from_ or (1, 2)
    workers, batch_size = workers or (2, 2), batch_size or (4, 4)
    request = AuditRequest(
        before=Readers(*before, workers[0], batch_size[0]),
        after=tuple(
            Readers(*ranks, workers[1], batch_size[1]) for ranks in after or _fewer(before)
        ),
        samples=_cut(samples, shards, samples_per_shard),
        epochs=epochs,
        seed=seed,
        at=tuple(at or ()),
        tries=(0 if at else TRIES) if try_ is None else try_,
        seconds=seconds,
    )
    _check(request)
    counted = _run_audit(command, request)
    print_answer(counted.as_json, counted.parts, json=json, to=to_format)
    if out is not None:
        counted.save(out, force=force)
        typer.echo(f"Tables: {out}", err=json or to_format is not None)
    if counted.wrong:
        raise typer.Exit(1)


def _run_audit(command: Command, request: AuditRequest) -> Counted:
    from simshuffle.extensions.resuming.auditing import audit
    from simshuffle.extensions.resuming.counted import Counted
    from simshuffle.extensions.resuming.script import Script

    with (
        tempfile.TemporaryDirectory(prefix="simshuffle-audit-") as folder,
        Script(command, Path(folder)) as script,
    ):
        try:
            with share_progress("audit") as tell:
                return Counted(audit(script, request, tell))
        finally:
            detail(script.log())


def _command_in(words: Sequence[str]) -> list[str]:
    """Return the command behind --, before which nothing may stand."""
    from simshuffle.extensions.resuming.script import EXAMPLE

    before, command = split_command(words)
    first = before[0] if before else ""
    is_option = first.startswith("-")
    if "--" not in words and not is_option:
        refuse("COMMAND", "must stand behind --", repr(first), f"{EXAMPLE}.", COMMAND_LINE)
    if before:
        rule = "is no option of audit" if is_option else "cannot stand before --"
        refuse(first, rule, "", "See simshuffle study audit -h.", COMMAND_LINE)
    return command


def _fewer(before: tuple[int, int]) -> list[tuple[int, int]]:
    """The same ranks, and fewer: a rank less on each node, or a node less."""
    nodes, ranks = before
    fewer = (nodes, ranks - 1) if ranks > 1 else (nodes - 1, ranks)
    return [before, fewer] if min(fewer) else [before]


def _cut(samples: int, shards: int | None, each: int | None) -> tuple[int, ...]:
    """Samples of each shard: as many as can be, and a rest in the last one."""
    if shards is not None and each is not None:
        rule, remedy = "cannot be combined with --samples-per-shard", "Leave one out."
        refuse("--shards", rule, str(shards), remedy, COMMAND_LINE)
    if shards is not None and shards > samples:
        remedy = "Name fewer shards, or raise --samples."
        refuse(
            "--shards", f"must be at most --samples {samples}", str(shards), remedy, COMMAND_LINE
        )
    count = min(shards or SHARDS, samples)
    if each is None:
        return tuple(samples // count + (k < samples % count) for k in range(count))
    return (each,) * (samples // each) + ((samples % each,) if samples % each else ())


def _check(request: AuditRequest) -> None:
    """See that there are points, in epochs that there are."""
    for epoch, step in request.at:
        if epoch >= request.epochs:
            rule = f"must be a step of the epochs 0 to {request.epochs - 1}"
            remedy = "Name an earlier one, or raise --epochs."
            refuse("--at", rule, f"{epoch}:{step}", remedy, COMMAND_LINE)
    if not request.at and not request.tries:
        rule, remedy = "must be 1 or more where no --at is given", "Name a step, or --try 5."
        refuse("--try", rule, str(request.tries), remedy, COMMAND_LINE)
