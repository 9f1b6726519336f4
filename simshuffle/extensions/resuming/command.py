"""The verb audit: what a loader loses and repeats when it is killed and goes on."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simshuffle.cli.common import (
    AsJson,
    print_answer,
    say_detail,
    share_progress,
    split_command,
    split_formats,
)
from simshuffle.cli.help import command
from simshuffle.errors import refuse
from simshuffle.study.options import COMMAND_LINE, Argument, Option, between_commas

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simshuffle.extensions.resuming.counted import AuditReport
    from simshuffle.extensions.resuming.outcomes import AuditRequest
    from simshuffle.extensions.resuming.script import Command

app = typer.Typer()
TRIES, SAMPLES, SHARDS = 5, 240, 8
"""Default numbers of crash points, if none is named, of samples, and of shards."""


def read_ranks(flag: str, text: str) -> tuple[int, int]:
    """Parse NODESxRANKS: (nodes, ranks of a node), both from 1 on.

    Raises:
        InputError: ``text``, a value of option ``flag``, is not written so.
    """
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if match is None or not int(match[1]) * int(match[2]):
        rule = "must be NODESxRANKS, both from 1 on"
        remedy = f"For example {flag} 2x4."
        refuse(flag, rule, repr(text), remedy, COMMAND_LINE)
    return int(match[1]), int(match[2])


def pair_reader(flag: str, minimum: int) -> Callable[[str], tuple[int, int]]:
    """Return a function that reads N or N:N: the numbers before and after the crash.

    A single number counts for both. The function raises an InputError, which names
    ``flag``, for other texts and numbers below ``minimum``.
    """

    def read(text: str) -> tuple[int, int]:
        """Read the numbers before and after the crash."""
        match = re.fullmatch(r"(\d{1,7})(?::(\d{1,7}))?", text)
        numbers = [int(digits) for digits in match.groups(match[1])] if match else []
        if not numbers or min(numbers) < minimum:
            rule = f"must be a number of at least {minimum}, or two: before and after the crash"
            refuse(flag, rule, repr(text), f"For example {flag} 8:6.", COMMAND_LINE)
        return numbers[0], numbers[1]

    return read


def read_points(texts: list[str]) -> list[tuple[int, int]]:
    """Parse the points of --at: (epoch, step) each, epochs from 0 and steps from 1.

    A text has several between commas; the epoch is 0 where it is not written.

    Raises:
        InputError: a point is not written so.
    """
    points = []
    for text in between_commas(texts):
        match = re.fullmatch(r"(?:(\d{1,9}):)?(\d{1,9})", text)
        if match is None or not int(match[2]):
            rule = "must be a step from 1 on, or EPOCH:STEP"
            remedy = "For example 12, or 1:12."
            refuse("--at", rule, repr(text), remedy, COMMAND_LINE)
        points.append((int(match[1] or 0), int(match[2])))
    return points


CommandWords = Annotated[
    list[str],
    Argument(
        "-- COMMAND",
        "After --: python [OPTIONS] SCRIPT.py [ARGUMENTS], of any environment. The script has"
        " make(run), which returns a loader of numbers of samples for run.rank; state(loader); and"
        " resume(run, states), with the states of all ranks.",
        many=True,
    ),
]
From = Annotated[
    tuple[int, int] | None,
    Option(
        "NODESxRANKS",
        "Ranks that are killed. Default: 1x2.",
        read=lambda text: read_ranks("--from", text),
    ),
]
To = Annotated[
    list[str] | None,
    Option(
        "NODESxRANKS|FORMAT",
        "Ranks that go on. Default: the same, and one less on each node. Or a format, to print only"
        " the tables on standard output: latex (booktabs) or markdown.",
        many=True,
    ),
]
Workers = Annotated[
    tuple[int, int] | None,
    Option(
        "N[:N]",
        "Workers of a rank, before and after. Default: 2.",
        read=pair_reader("--workers", 0),
    ),
]
Batch = Annotated[
    tuple[int, int] | None,
    Option(
        "N[:N]",
        "Samples of a rank's batch, before and after. Default: 4.",
        read=pair_reader("--batch-size", 1),
    ),
]
At = Annotated[
    list[tuple[int, int]] | None,
    Option(
        "STEP",
        "Save the state after this step of the first epoch; 1:12 is step 12 of epoch 1, from 0.",
        read=read_points,
        many=True,
    ),
]


Tries = Annotated[
    int | None,
    Option(
        "N", "Number of steps to draw at random. Default: 5, or none with --at.", low=0
    ),
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
    words: CommandWords,
    *,
    from_: From = None,
    to: To = None,
    workers: Workers = None,
    batch_size: Batch = None,
    samples: Annotated[int, Option("N", "Samples of the set.", low=1)] = SAMPLES,
    shards: Annotated[
        int | None, Option("S", "Files of the set. Default: 8.", low=1)
    ] = None,
    samples_per_shard: Annotated[
        int | None, Option("N", "Samples of a file, in place of --shards.", low=1)
    ] = None,
    epochs: Annotated[int, Option("N", "Epochs of the run.", low=1)] = 2,
    at: At = None,
    try_: Tries = None,
    seed: Annotated[
        int, Option("N", "Seed of the loader and of the steps.", low=0)
    ] = 0,
    seconds: Annotated[
        float,
        Option("S", "A run that takes longer than S s counts as hanging.", low=0.1),
    ] = 60.0,
    out: Annotated[
        Path | None, Option("FOLDER", "Result folder; the default is none.")
    ] = None,
    force: Annotated[
        bool, Option("", "Replace the result that is in the result folder.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Say what a loader loses and repeats when it is killed.

    Forks real ranks of a script of yours, kills them in the middle of an epoch, goes on
    with others, and counts. What the script prints is shown with -v alone. Exit status:
    0, or 1 where samples are lost, come again, or the loader refuses or hangs.
    """
    from simshuffle.extensions.resuming.audit_tables import FILES
    from simshuffle.extensions.resuming.outcomes import AuditRequest
    from simshuffle.extensions.resuming.script import Command
    from simshuffle.report.folders import check_place
    from simshuffle.workload.orders.order import Readers

    ranks_after, to_format = split_formats(to or ())
    # each change counts once, though ranks may be named twice
    ranks_after_crash = dict.fromkeys(read_ranks("--to", word) for word in ranks_after)
    command = Command.parse(_command_in(words))
    if out is not None:
        check_place(out, replace=force, known_names=FILES)
    ranks_before = from_ or (1, 2)
    workers = workers or (2, 2)
    batch_size = batch_size or (4, 4)
    request = AuditRequest(
        before=Readers(*ranks_before, workers[0], batch_size[0]),
        after=tuple(
            Readers(*ranks, workers[1], batch_size[1])
            for ranks in ranks_after_crash or default_changes(ranks_before)
        ),
        samples=cut_into_shards(samples, shards, samples_per_shard),
        epochs=epochs,
        seed=seed,
        at=tuple(at or ()),
        tries=(0 if at else TRIES) if try_ is None else try_,
        seconds=seconds,
    )
    check_points(request)
    counted = _run_audit(command, request)
    print_answer(counted.as_json, counted.parts, json=json, table_format=to_format)
    if out is not None:
        counted.save(out, force=force)
        typer.echo(f"Tables: {out}", err=json or to_format is not None)
    if counted.num_wrong:
        raise typer.Exit(1)


def _run_audit(command: Command, request: AuditRequest) -> AuditReport:
    """Run an audit in a temporary folder, with progress, and return its report.

    What the script wrote is shown as a detail (-v), also after an error.
    """
    from simshuffle.extensions.resuming.auditing import audit
    from simshuffle.extensions.resuming.counted import AuditReport
    from simshuffle.extensions.resuming.script import Script

    with (
        tempfile.TemporaryDirectory(prefix="simshuffle-audit-") as folder,
        Script(command, Path(folder)) as script,
    ):
        try:
            with share_progress("audit") as tell:
                return AuditReport(audit(script, request, tell))
        finally:
            say_detail(script.log())


def _command_in(words: Sequence[str]) -> list[str]:
    """Return the command behind --, before which nothing may stand.

    Raises:
        InputError: -- is missing, or an unknown option or a word stands before it.
    """
    from simshuffle.extensions.resuming.script import EXAMPLE

    options, command = split_command(words)
    first = options[0] if options else ""
    is_option = first.startswith("-")
    if "--" not in words and not is_option:
        refuse(
            "COMMAND", "must stand behind --", repr(first), f"{EXAMPLE}.", COMMAND_LINE
        )
    if options:
        rule = "is no option of audit" if is_option else "cannot stand before --"
        refuse(first, rule, "", "See simshuffle study audit -h.", COMMAND_LINE)
    return command


def default_changes(ranks: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the default numbers of nodes and ranks of a node that resume: as before,
    and one rank less on each node.

    Where nodes have a single rank there is a node less instead; a single rank in all
    has no second change.
    """
    nodes, ranks_of_node = ranks
    fewer = (
        (nodes, ranks_of_node - 1) if ranks_of_node > 1 else (nodes - 1, ranks_of_node)
    )
    return [ranks, fewer] if min(fewer) else [ranks]


def cut_into_shards(
    samples: int, shards: int | None, samples_per_shard: int | None
) -> tuple[int, ...]:
    """Return the samples of each shard: as equal as possible, or with
    ``samples_per_shard`` equal, and a rest in the last shard.

    Without both there are `SHARDS` shards, or one for each sample if there are fewer
    samples.

    Raises:
        InputError: both are given, or there are more shards than samples.
    """
    if shards is not None and samples_per_shard is not None:
        rule = "cannot be combined with --samples-per-shard"
        remedy = "Leave one out."
        refuse("--shards", rule, str(shards), remedy, COMMAND_LINE)
    if shards is not None and shards > samples:
        remedy = "Name fewer shards, or raise --samples."
        refuse(
            "--shards",
            f"must be at most --samples {samples}",
            str(shards),
            remedy,
            COMMAND_LINE,
        )
    num_shards = min(shards or SHARDS, samples)
    if samples_per_shard is None:
        return tuple(
            samples // num_shards + (k < samples % num_shards)
            for k in range(num_shards)
        )
    return (samples_per_shard,) * (samples // samples_per_shard) + (
        (samples % samples_per_shard,) if samples % samples_per_shard else ()
    )


def check_points(request: AuditRequest) -> None:
    """Refuse a request without points to save at, or with points in epochs that do not
    exist.

    Raises:
        InputError: ``at`` is empty and ``tries`` is 0, or an epoch of ``at`` is not one
            of the run's.
    """
    for epoch, step in request.at:
        if epoch >= request.epochs:
            rule = f"must be a step of the epochs 0 to {request.epochs - 1}"
            remedy = "Name an earlier epoch, or raise --epochs."
            refuse("--at", rule, f"{epoch}:{step}", remedy, COMMAND_LINE)
    if not request.at and not request.tries:
        rule = "must be 1 or more without --at"
        remedy = "Name a step, or --try 5."
        refuse("--try", rule, str(request.tries), remedy, COMMAND_LINE)
