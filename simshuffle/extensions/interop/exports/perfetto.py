"""Write a timeline of ranks, their messages and the links, for Perfetto and
chrome://tracing.
"""

from __future__ import annotations

from pathlib import Path

from simshuffle.errors import refuse
from simshuffle.extensions.interop.exports.program import Tell
from simshuffle.extensions.interop.exports.source import ExportedRun
from simshuffle.extensions.interop.exports.trace_file import open_trace_file
from simshuffle.extensions.interop.exports.trace_writer import TraceWriter
from simshuffle.extensions.interop.exports.traced import (
    check_ranks,
    choose_ranks,
    describe_epoch,
    read_stored,
    simulate_again,
)
from simshuffle.version import __version__

SIMULATION_SHARE = 0.85
"""Share of the time that the simulation takes."""


def write(
    source: ExportedRun, path: Path, ranks: str | None, messages: str | None, tell: Tell
) -> list[str]:
    """Write a timeline to the file ``path``, and return lines about it for people.

    The tables of a result suffice with ``messages`` 'none'; else, and where the run has
    no result, the run is simulated again.

    Args:
        source: the run.
        path: the file, which is made: JSON, gzipped.
        ranks: ranks that are shown, such as '0-3,slowest'; None for all of a few ranks,
            else the slowest, the fastest and a sample.
        messages: 'chosen' or None for the messages of the ranks that are shown; 'none'.
        tell: receives the share that is done, from 0 to 1.

    Raises:
        InputError: a rank does not exist, ``messages`` is another text, the result has
            no timeline, or the tables are not what is simulated now.
    """
    rank_requests = check_ranks(ranks, source.scenario.world_size)
    if messages not in {None, "chosen", "none"}:
        rule = "must be chosen or none"
        remedy = "Write one of the two, or leave --messages out."
        refuse("--messages", rule, repr(messages), remedy, "command line")
    reads_tables = messages == "none" and source.result is not None
    if reads_tables:
        epochs = list(read_stored(source))
    else:
        epochs = list(
            simulate_again(source, lambda share: tell(SIMULATION_SHARE * share))
        )
    shown_ranks = choose_ranks(rank_requests, [epoch.phases for epoch in epochs])
    with open_trace_file(path) as file:
        writer = TraceWriter(file, source, shown_ranks, epochs[0].begin)
        for count, epoch in enumerate(epochs, 1):
            is_last = count == len(epochs) or epochs[count].begin > epoch.end
            writer.write_epoch(epoch, messages=messages != "none", is_last=is_last)
            tell(SIMULATION_SHARE + (1 - SIMULATION_SHARE) * count / len(epochs))
        facts = {
            "simshuffle": __version__,
            "source": source.reference,
            "run": source.run,
            "world_size": source.scenario.world_size,
            "ranks": list(shown_ranks),
            "epochs": {str(epoch.epoch): describe_epoch(epoch) for epoch in epochs},
            "zero_s": epochs[0].begin,
        }
        file.finish(facts)
    return [
        f"{len(shown_ranks)} of {source.scenario.world_size} ranks, {writer.num_arrows} messages,"
        f" {file.events} events.",
        *(
            f"Epoch {epoch.epoch}: {text}."
            for epoch in epochs
            for text in describe_epoch(epoch)
        ),
    ]
