"""Network namespaces that come and go: what a machine lacks for them, building a
testbed of them, and removing it whatever happens.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from simshuffle.errors import InputError, Problem, SimshuffleError
from simshuffle.study.server import handle_signals, interrupt
from simshuffle_testbed import commands

# s for a command that changes the namespaces; on an idle machine it takes milliseconds
PATIENCE = 60.0
NEEDED = {
    "veth": "link add d0 type veth peer name a0",
    "sch_tbf": "qdisc add dev d0 root handle 1: tbf rate 1mbit burst 5kb limit 10kb",
    "sch_htb": "qdisc add dev d0 parent 1:1 handle 10: htb default 1",
    "sch_ingress (clsact)": "qdisc add dev d0 clsact",
    "cls_u32": (
        "filter add dev d0 parent 10: protocol ip prio 1 u32 match ip src 10.77.0.1/32 flowid 10:1"
    ),
    "act_mirred": (
        "filter add dev d0 egress protocol ip prio 1 u32 match u16 0 0xff80 at 2 action mirred"
        " egress redirect dev a0"
    ),
}
"""What the kernel must have, and the command that tries it, in this order."""


def run_command(arguments: Sequence[str], text: str = "") -> str:
    """Run a command with ``text`` on its standard input; returns what it says on
    standard output.

    Raises:
        SimshuffleError: it failed.
    """
    try:
        done = subprocess.run(  # noqa: S603
            arguments,
            input=text,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SimshuffleError(f"{arguments[0]}: {error}") from None
    if done.returncode:
        said = done.stderr.strip() or f"status {done.returncode}"
        raise SimshuffleError(f"{' '.join(arguments)}: {said}")
    return done.stdout


def in_namespace(name: str, *arguments: str) -> list[str]:
    """The command that runs ``arguments`` in a namespace."""
    return ["ip", "netns", "exec", name, *arguments]


def check_machine() -> None:
    """See that this machine can build a testbed.

    Raises:
        InputError: it cannot; everything that is missing is named.
    """
    if problems := missing_programs() or missing_in_kernel():
        raise InputError(problems, "this machine cannot build the testbed")


def missing_programs() -> list[Problem]:
    """What is missing before the kernel can be asked."""
    problems = []
    if not Path("/proc/self/ns/net").exists():
        rule = "must be Linux with network namespaces"
        problems.append(Problem("kernel", rule, "", "Use a Linux machine."))
    if user := os.geteuid():
        rule = "must be root, to make network namespaces"
        problems.append(Problem("user", rule, f"user id {user}", "Run it with sudo."))
    programs = [program for program in ("ip", "tc") if shutil.which(program) is None]
    return problems + [
        Problem(name, "is missing", "", "Install iproute2.") for name in programs
    ]


def missing_in_kernel() -> list[Problem]:
    """What the kernel refuses, found out in a namespace of its own that is removed at
    once.
    """
    name = commands.namespace(str(os.getpid()), "probe")
    try:
        run_command(["ip", "netns", "add", name])
    except SimshuffleError as error:
        remedy = "Run it as root, outside a restricted container."
        return [
            Problem("network namespaces", "cannot be made here", str(error), remedy)
        ]
    try:
        for what, command in NEEDED.items():
            program = "ip" if command.startswith("link") else "tc"
            try:
                run_command([program, "-n", name, *command.split()])
            except SimshuffleError as error:
                remedy = "Load the module or use another kernel."
                # what follows builds on it
                return [Problem(what, "is missing in this kernel", str(error), remedy)]
    finally:
        remove([name])
    return []


def existing() -> list[str]:
    """The names of all namespaces of all runs on this machine."""
    lines = run_command(["ip", "netns", "list"]).splitlines()
    names = [line.split()[0] for line in lines if line.strip()]
    return [name for name in names if name.startswith(f"{commands.PREFIX}-")]


def abandoned(names: Sequence[str]) -> list[str]:
    """Those of ``names`` whose run is dead: the number in a name is that of its
    process.
    """
    return [
        name
        for name in names
        if (number := name.split("-")[1]).isdecimal() and not _alive(int(number))
    ]


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def remove(names: Sequence[str]) -> None:
    """Remove namespaces with all that is in them; one that is gone already is no error."""
    lines = _lines([f"netns del {name}" for name in names])
    with uninterrupted(), suppress(SimshuffleError):
        run_command(["ip", "-force", "-batch", "-"], lines)


@contextmanager
def built(testbed: commands.NamespaceNetwork) -> Iterator[str]:
    """A testbed of namespaces; yields the name of the run. It is removed in the end,
    whatever happens, and so are those of dead runs.

    Raises:
        SimshuffleError: a command failed.
    """
    run = str(os.getpid())
    remove(abandoned(existing()))
    try:
        run_command(["ip", "-batch", "-"], _lines(commands.cables(testbed, run)))
        for node in testbed.nodes:
            _furnish(commands.namespace(run, node), commands.node(testbed, node))
        yield run
    finally:
        remove([commands.namespace(run, node) for node in testbed.nodes])


def _furnish(name: str, made: commands.NodeCommands) -> None:
    settings = "".join(
        f"echo '{value}' > /proc/sys/{path}\n" for path, value in made.settings.items()
    )
    run_command(in_namespace(name, "sh", "-e"), settings)
    run_command(["ip", "-n", name, "-batch", "-"], _lines(made.ip))
    run_command(["tc", "-n", name, "-batch", "-"], _lines(made.tc))


def _lines(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def terminated_as_interrupted() -> AbstractContextManager[None]:
    """A polite kill (SIGTERM, or SIGHUP from a closed terminal) becomes a
    KeyboardInterrupt, so that everything is cleaned up.
    """
    return handle_signals(interrupt, signal.SIGTERM, signal.SIGHUP)


def uninterrupted() -> AbstractContextManager[None]:
    """Neither Ctrl-C nor SIGTERM nor SIGHUP has an effect; they are not made up for."""
    return handle_signals(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
