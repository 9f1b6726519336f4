"""Do records of 1 and 2 ranks say what 4 and 8 ranks take?

    python benchmarks/real_ranks.py [--only CASE ...] [--steps N]

`ranks_training.py` trains with gloo on this machine; a sleep stands for the accelerator, so
that two cores are enough for 8 ranks. It reads files through a slow disk (`slow_disk.py`) that all
ranks share, or its ranks are hosts of their own, whose links are slow (network namespaces of
`plugins/testbed`, which needs root). With 1 and 2 ranks it is recorded;
`simshuffle.extensions.doctor` then predicts 4 and 8, which are measured without the recorder. "By
hand" is what the law of each case says. What is beyond the accelerator is its stall.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import slow_disk

from simshuffle.extensions.calibration.validation.testbed_patterns import NamespaceShape
from simshuffle.extensions.doctor.predicting import predict
from simshuffle.extensions.doctor.recorder import variables as told_to_record
from simshuffle.extensions.doctor.records.collected import collected
from simshuffle.extensions.doctor.records.record import Record

HERE = Path(__file__).parent
SCRIPT = HERE / "ranks_training.py"
RECORDED, PREDICTED = (1, 2), (4, 8)
WANTED = 0.1
"""Largest share by which a prediction may miss."""
PATIENCE = 180.0
"""s that a run may take."""
ACCELERATOR = 0.1
"""s of a step."""
FILES, NBYTES, BATCH = 64, 150_000, 8
"""Files, bytes of each, and how many a rank's batch has."""
RATE = 15e6
"""bytes/s of the disk that is bound by them."""
LATENCY, FEW = 0.05, 4
"""s of each open of the other one, and files of a rank's batch there."""
LINK, PARAMETERS = 5e6, 100_000
"""bytes/s of a link, with headers, and parameters of the network whose gradients cross it."""
PAYLOAD = 1448 / 1514
"""Share of what a link carries that is not headers: Ethernet, IPv4, TCP with time stamps."""


@dataclass(frozen=True)
class Case:
    """What binds a training."""

    law: Callable[[int], float]  # s of a step by the number of ranks, by hand
    script: tuple[str, ...] = ()  # options of the script
    disk: tuple[str, ...] = ()  # options of the slow disk; none if there is none
    link: float = 0.0  # bytes/s of the links between ranks; 0 if all are on this host

    def lacks(self) -> str:
        """What this machine lacks for it, '' if nothing."""
        if self.disk:
            return slow_disk.missing()
        try:
            from simshuffle_testbed import namespaces  # noqa: PLC0415 - a plugin
        except ImportError:
            return "no simshuffle_testbed (put plugins/testbed on PYTHONPATH)"
        problems = namespaces.missing_programs() or namespaces.missing_in_kernel()
        return "; ".join(map(str, problems))


CASES = {
    "rate": Case(
        lambda ranks: max(ACCELERATOR, ranks * BATCH * NBYTES / RATE),
        script=("--workers", "2"),
        disk=("--rate", str(RATE)),
    ),
    "latency": Case(
        lambda ranks: max(ACCELERATOR, FEW * LATENCY),
        script=("--batch", str(FEW)),
        disk=("--open-s", str(LATENCY)),
    ),
    "allreduce": Case(
        lambda ranks: ACCELERATOR + 2 * (ranks - 1) / ranks * 4 * PARAMETERS / (PAYLOAD * LINK),
        script=("--parameters", str(PARAMETERS), "--workers", "0"),
        link=LINK,
    ),
}

QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
"""Hosts of namespaces have no names, and torch warns of that."""
Place = tuple[Sequence[str], Mapping[str, str]]
"""Where a rank runs: what stands before its command, and its environment variables."""


@contextmanager
def placed(case: Case) -> Iterator[tuple[tuple[str, ...], list[Place]]]:
    """The options of the script that say where its data are, and the places of the ranks."""
    with ExitStack() as stack:
        if case.link:
            from simshuffle_testbed import commands, namespaces  # noqa: PLC0415 - a plugin
            from simshuffle_testbed.commands import NamespaceNetwork  # noqa: PLC0415

            testbed = NamespaceNetwork(NamespaceShape(rate=case.link))
            run = stack.enter_context(namespaces.built(testbed))
            hosts = testbed.host_names
            devices = [commands.data_device(testbed.leaving(host)[0]) for host in hosts]
            yield (
                (),
                [
                    (
                        namespaces.in_namespace(commands.namespace(run, host)),
                        {"MASTER_ADDR": commands.address(0), "GLOO_SOCKET_IFNAME": device},
                    )
                    for host, device in zip(hosts, devices, strict=True)
                ],
            )
            return
        scratch = Path(stack.enter_context(TemporaryDirectory()))
        (scratch / "files").mkdir()
        content = np.random.default_rng(0).bytes(NBYTES)
        for number in range(FILES):
            (scratch / "files" / f"{number}.bin").write_bytes(content)
        disk = slow_disk.slow_disk(scratch / "files", scratch / "disk", *case.disk)
        mount = stack.enter_context(disk)
        yield ("--data", str(mount)), [((), {"MASTER_ADDR": "127.0.0.1"})] * max(PREDICTED)


def trained(options: Sequence[str], places: Sequence[Place], rows: Path | None) -> float:
    """s of a step of a rank at each place, as the script says; recorded to ``rows``, if given."""
    known = {**os.environ, **QUIET, "WORLD_SIZE": str(len(places)), "OMP_NUM_THREADS": "1"}
    known["MASTER_PORT"] = str(_free_port())
    if rows is not None:
        known |= told_to_record(str(rows))
    command = [sys.executable, str(SCRIPT), *options]
    processes = [
        subprocess.Popen(
            [*before, *command],
            env=known | variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, (before, variables) in enumerate(places)
    ]
    try:
        said = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    found = re.search(r"([\d.]+) s a batch", said[0])
    if found is None or any(process.returncode for process in processes):
        raise RuntimeError(f"{' '.join(command)} with {len(places)} ranks did not end well")
    return float(found[1])


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def compared(name: str, case: Case, steps: int) -> float:
    """Print predicted beside measured steps of a case; returns the largest share missed."""
    records: list[Record] = []
    measured = {}
    with placed(case) as (data, places), TemporaryDirectory() as scratch:
        common = ("--batch", BATCH, "--steps", steps, "--seconds", ACCELERATOR)
        options = (*data, *map(str, common), *case.script)
        for ranks in (*RECORDED, *PREDICTED):
            rows = Path(scratch, str(ranks)) if ranks in RECORDED else None
            if rows is not None:
                rows.mkdir()
            measured[ranks] = trained(options, places[:ranks], rows)
            if rows is not None:
                records.append(collected(rows, {"ranks": ranks, "command": [str(SCRIPT)]}))
    expected = predict(records, None, PREDICTED, interval=False)
    predicted = {of.ranks: of.step_s for of in expected.ranks}
    worst = 0.0
    for ranks, seconds in measured.items():
        line = f"{name:10} {ranks:5} {case.law(ranks):10.3f}"
        if ranks in predicted:
            missed = predicted[ranks] / seconds - 1
            worst = max(worst, abs(missed))
            stalls = [each - ACCELERATOR for each in (predicted[ranks], seconds)]
            line += f" {predicted[ranks]:10.3f} {seconds:10.3f} {missed:+8.1%}"
            line += f" {stalls[0]:10.3f} {stalls[1]:10.3f}"
        else:
            line += f" {'recorded':>10} {seconds:10.3f}"
        print(line, flush=True)
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", choices=CASES, help="may be given several times")
    parser.add_argument("--steps", type=int, default=32, help="of a run; the second half counts")
    wish = parser.parse_args()
    print("                         s of a step                              stall (s)")
    print("case       ranks    by hand  predicted   measured   missed  predicted   measured")
    worst = 0.0
    for name in wish.only or CASES:
        if why := CASES[name].lacks():
            print(f"{name:10} left out: {why}")
        else:
            worst = max(worst, compared(name, CASES[name], wish.steps))
    sys.exit(f"missed by more than {WANTED:.0%}" if worst > WANTED else 0)


if __name__ == "__main__":
    main()
