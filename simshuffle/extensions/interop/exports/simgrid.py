"""Export an iteration's exchange to SMPI, the part of SimGrid that simulates MPI
programs.

The files are a platform, a host file and an MPI program.

A rank is a host of its own, so that routes can depend on its HCA and its memory. Each
directed link of the run is a link. Every route has one more, without sharing, which has
the latency of message passing and the limit of a single stream. The latencies of cables
are not in the platform: SimGrid shares a link by the inverse of the latencies of the
routes on it (network/weight-S), so unequal ones would make sharing unfair. The sender
waits them out in place of the network.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np

from simshuffle.extensions.interop.exports.program import Program, Tell
from simshuffle.spec.arrays import Ints, Ints32

Routes = dict[tuple[int, int], list[int]]
"""By sender and receiver, the numbers of the links of their route, in order."""

WIDTH = 112
"""Characters of a line of exchange.txt, with its end: the WIDTH of exchange.c."""
SETTINGS = {
    "network/model": "CM02",  # latency, then bytes at a fair rate; factors and windows off:
    "network/bandwidth-factor": "1",
    "network/latency-factor": "1",
    "network/TCP-gamma": "0",
    "network/crosstraffic": "0",
    "network/weight-S": "0",
    "network/optim": "Full",  # Lazy overloads links when flows begin together
    "surf/precision": "1e-12",
    "maxmin/precision": "1e-6",  # with 1e-12, 3.32 fails on links of 12.5 GB/s
    "smpi/host-speed": "1Gf",
    "smpi/simulate-computation": "no",  # only what exchange.c says takes time
    "smpi/async-small-thresh": "1000",  # what is smaller is sent eagerly: barriers
    "smpi/send-is-detached-thresh": "1000",
    "smpi/barrier": "ompi_bruck",  # dissemination
    "smpi/init": "0",
    "smpi/wtime": "0",
    "smpi/test": "0",
    "smpi/iprobe": "0",
}
"""What makes SMPI share links max-min fairly, and lets nothing but the program take
time.
"""
README = """\
{name}: the exchange after iteration {iteration} of epoch {epoch} of {ranks} ranks.

    smpicc -O2 exchange.c -o exchange
    smpirun -platform platform.xml -hostfile hostfile \\
{settings} \\
      ./exchange exchange.txt

The program prints a line for each rank: its number; when it had sent all its messages; when all
messages to it had arrived; when it was done; when it left each barrier (s). The program also runs
on a real cluster, with the cluster's mpicc and mpirun.

platform.xml has the {links} links that messages cross, and {routes} routes: one for each pair of
ranks that exchange samples or meet in a round of a barrier. Other pairs have no route.
In exchange.c, the sender waits for the latency of the cables.
Made with SimGrid 3.32.
"""


def write(program: Program, path: Path, tell: Tell) -> list[str]:
    """Write the exchange of an iteration to a new folder ``path``, and return lines
    about the exchange for people, with a line on messages whose routes had to be
    changed, if any.

    Args:
        program: the exchange of the iteration.
        path: the folder, which is made and must not exist.
        tell: receives the share that is done, from 0 to 1.
    """
    routes, num_rerouted = routes_of(program)
    crossed_links = sorted({link for route in routes.values() for link in route})
    tell(0.5)
    path.mkdir()
    _write(path / "platform.xml", _platform_lines(program, routes, crossed_links))
    tell(0.8)
    _write(path / "hostfile", (f"rank-{rank}\n" for rank in range(program.world_size)))
    _write(path / "exchange.txt", _exchange_lines(program))
    code = Path(__file__).with_name("exchange.c").read_text(encoding="ascii")
    _write(path / "exchange.c", [code])
    readme = README.format(
        name=program.name,
        iteration=program.iteration,
        epoch=program.epoch,
        ranks=program.world_size,
        settings=" \\\n".join(f"      {option}" for option in smpi_options()),
        links=len(crossed_links),
        routes=len(routes),
    )
    _write(path / "README.txt", [readme])
    lines = [
        f"{len(crossed_links)} links and {len(routes)} routes, those that messages use. See"
        " README.txt."
    ]
    if num_rerouted:
        lines.append(
            f"{num_rerouted} messages take another route in SimGrid: the first of their pair of"
            " ranks,"
            " since SimGrid has one route for each pair."
        )
    return lines


def smpi_options() -> list[str]:
    """Return the options of smpirun, as '--cfg=KEY:VALUE'."""
    return [f"--cfg={key}:{value}" for key, value in SETTINGS.items()]


def routes_of(program: Program) -> tuple[Routes, int]:
    """Return the links between ranks that exchange samples or would meet in a round of
    a barrier, also where there is none.

    SimGrid has one route for each ordered pair, the first of its messages. The second
    value is the number of messages of samples whose route differs from the first.
    """
    ranks = np.arange(program.world_size)
    resources = program.resources.with_fresh_routes()
    routes: Routes = {}
    num_rerouted = 0

    def add_routes(targets: Ints, links: Ints32, senders: Ints) -> int:
        """Add the routes of senders to their targets, unless a pair has one, and return
        how many pairs have another.
        """
        num_different = 0
        for rank in senders.tolist():
            route = [link for link in links[rank].tolist() if link >= 0]
            num_different += (
                routes.setdefault((rank, int(targets[rank])), route) != route
            )
        return num_different

    for step in program.steps:
        num_rerouted += add_routes(step.target, step.route, np.flatnonzero(step.sends))
    for round_index in range((program.world_size - 1).bit_length()):
        targets = (ranks + (1 << round_index)) % program.world_size
        links, _ = resources.message(ranks, targets)
        add_routes(targets, links, ranks)
    return routes, num_rerouted


def _platform_lines(
    program: Program, routes: Routes, crossed_links: list[int]
) -> Iterator[str]:
    """Yield the text of platform.xml in parts, some of a line: a host for each rank,
    the crossed links, and the routes.

    The bandwidth of a stream without limit is 1,000 times that of the fastest link.
    """
    links = program.resources.links
    yield "<?xml version='1.0'?>\n"
    yield '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n'
    yield '<platform version="4.1">\n<zone id="machine" routing="Full">\n'
    for rank in range(program.world_size):
        yield f'<host id="rank-{rank}" speed="1Gf"/>\n'
    # SimGrid knows no link without a limit
    max_capacity = float(links.capacity[crossed_links].max())
    stream_bandwidth = min(program.stream_bandwidth, 1e3 * max_capacity)
    yield f'<link id="message passing" bandwidth="{stream_bandwidth!r}Bps"'
    yield f' latency="{program.latency_s!r}s" sharing_policy="FATPIPE"/>\n'
    names = {link: quoteattr(links.names[link]) for link in crossed_links}
    for link, name in names.items():
        capacity = float(links.capacity[link])
        yield f'<link id={name} bandwidth="{capacity!r}Bps" latency="0s"/>\n'
    for (source, target), route in routes.items():
        yield f'<route src="rank-{source}" dst="rank-{target}" symmetrical="NO">'
        yield '<link_ctn id="message passing"/>'
        yield "".join(f"<link_ctn id={names[link]}/>" for link in route)
        yield "</route>\n"
    yield "</zone>\n</platform>\n"


def _exchange_lines(program: Program) -> Iterator[str]:
    """Yield the lines of exchange.txt, `WIDTH` characters each, as exchange.c reads
    them.

    The first one has the numbers of ranks, steps and barriers before steps, and 1 if
    there is a barrier in the end. Then each rank has a line for every step (target,
    source, bytes sent and received, s of work, s of cables) and one with s of storing.
    """
    num_barriers = sum(program.barrier_before)
    yield _format_line(
        program.world_size, len(program.steps), num_barriers, int(program.barrier_after)
    )
    # of each step (M,) target, source, bytes sent and received, s of work, s of cables
    columns_of_steps = []
    for step in program.steps:
        sent_nbytes = np.where(
            step.sends, np.maximum(np.rint(step.nbytes), 1), 0
        ).astype(np.int64)
        received_nbytes = sent_nbytes[step.source]
        latency_s = np.where(step.sends, step.latency_s - program.latency_s, 0.0)
        columns = (
            step.target, step.source, sent_nbytes, received_nbytes, step.before_s, latency_s,
        )  # fmt: skip
        columns_of_steps.append([column.tolist() for column in columns])

    for rank, store_s in enumerate(program.store_s.tolist()):
        for columns_of_step in columns_of_steps:
            yield _format_line(*(column[rank] for column in columns_of_step))
        yield _format_line(store_s)


def _format_line(*values: float) -> str:
    """Return numbers as a line of `WIDTH` characters, fractions with 12 decimals."""
    text = " ".join(
        f"{value:.12e}" if isinstance(value, float) else str(value) for value in values
    )
    return f"{text:<{WIDTH - 1}}\n"


def _write(path: Path, lines: list[str] | Iterator[str]) -> None:
    """Write lines, which have their ends, to a text file."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)
