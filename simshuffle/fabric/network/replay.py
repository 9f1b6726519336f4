"""Replay of a case by one network model: its ends as a table, and a summary for people."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.pool import ThreadPool

import numpy as np

from simshuffle.errors import InputError, Problem
from simshuffle.fabric.network.analytic import isolated_seconds
from simshuffle.fabric.network.case import FlowCase, list_first_problems
from simshuffle.fabric.network.flows import FlowOutcome, Flows, Links, latest_ends
from simshuffle.fabric.network.fluid_records import INSTANT
from simshuffle.fabric.network.models import Analytic, Model, Network
from simshuffle.spec.arrays import Floats
from simshuffle.spec.record import Spec
from simshuffle.spec.validation import validate_record

_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Replay:
    """The answer of one network model to a case."""

    case: FlowCase  # the case
    model: Model  # the model
    outcome: FlowOutcome  # when the flows end
    bound: float  # s, the analytic lower bound of the makespan
    # s of processor time that the process took for it; compiled code had been loaded before
    cpu_seconds: float


class _NetworkHolder(Spec):
    """A record with nothing but a network model, to validate one by itself."""

    network: Network


def network_model(kind: str, settings: Mapping[str, object]) -> Model:
    """Return the network model ``kind`` with its settings, texts as on the command
    line; settings that are None keep their default.

    Raises:
        InputError: there is no such model, it has no such setting, or a value is out of
            range.
    """
    settings_as_values = {
        name: value for name, value in settings.items() if value is not None
    }
    with suppress(ValueError):
        settings_as_values |= {
            name: float(str(settings_as_values[name]))
            for name in settings_as_values
            if name == "tolerance"
        }
    holder, problems = validate_record(
        {"network": {"kind": kind, **settings_as_values}}, _NetworkHolder
    )
    if holder is None or problems:
        raise InputError(
            [replace(problem, path=_option(problem.path)) for problem in problems],
            "command line",
        )
    return holder.network


def _option(path: str) -> str:
    """Return the option of the command line that sets the key at ``path``, such as
    --port-buffer; the one of ``kind`` is --network.
    """
    name = path.rpartition(".")[2]
    return "--network" if name == "kind" else f"--{name.replace('_', '-')}"


def replay(
    case: FlowCase, model: Model, progress: Callable[[float], None] | None = None
) -> Replay:
    """Compute the answer of ``model`` to ``case``; ``progress`` is called with the
    share done, from another thread, now and then or, in short runs, never.

    A tiny run of the model goes before, so that compiling is not part of the time.

    Raises:
        InputError: the routes of the case can deadlock in this model, its numbers are
            out of the model's range, or floats cannot hold them side by side.
        SimulationError: flows wait for each other in a circle.
    """
    if problems := resolution_problems(case.links, case.flows):
        raise InputError(problems, case.name)
    # the first call of a process loads compiled code, or compiles it; that is no part of the work
    model.finish_times(Links(np.ones(1), np.zeros(1)), Flows.from_lists([[0]], [1.0]))
    start = time.process_time()
    try:
        outcome = _run_in_thread(
            lambda: model.finish_times(case.links, case.flows, progress)
        )
    except InputError:
        raise
    except ValueError as error:
        rule = f"must be within the range of the {model.kind} network"
        raise InputError(
            Problem(
                "", rule, str(error), "Give other numbers, or use another network."
            ),
            case.name,
        ) from None
    cpu_seconds = time.process_time() - start
    return Replay(
        case,
        model,
        outcome,
        Analytic().finish_times(case.links, case.flows).makespan,
        cpu_seconds,
    )


def _run_in_thread(work: Callable[[], FlowOutcome]) -> FlowOutcome:
    """Run ``work`` in a thread beside this one; returns or raises what ``work`` does.

    Compiled code does not look for Ctrl-C. This thread does, as far as that code lets
    other threads run, and the process can end.
    """
    with ThreadPool(1) as pool:
        answer = pool.apply_async(work)
        while not answer.ready():
            # not for ever: a signal that comes just before waiting begins would not end it
            answer.wait(0.1)
        return answer.get()


def relative_errors(computed: Floats, expected: Floats) -> Floats:
    """(n,) shares ``|computed - expected| / expected``; where 0 is expected, 0 if 0 is
    computed and inf if not.
    """
    errors = np.abs(computed - expected)
    with np.errstate(divide="ignore", over="ignore"):
        np.divide(errors, expected, out=errors, where=errors > 0)
    return errors


def end_columns(result: Replay, *, compare: bool) -> dict[str, Floats]:
    """List the end of each flow, in the order of the case: columns of (flows,) by name.

    They are finish_s; with ``compare``, and if the case has expected ends, expected_s
    and relative_error (a share) too.
    """
    columns = {"finish_s": result.outcome.finish}
    if compare and result.case.expected is not None:
        columns["expected_s"] = result.case.expected
        columns["relative_error"] = relative_errors(
            result.outcome.finish, result.case.expected
        )
    return columns


def csv_rows(result: Replay, *, compare: bool) -> Iterator[str]:
    """Yield the table of ends as CSV: the head, then pieces of many rows, each with a
    line end; numbers to the last bit.

    Columns: flow (its place in the case, from 0), and those of `end_columns`.
    """
    columns = end_columns(result, compare=compare)
    yield f"flow,{','.join(columns)}\n"
    for first in range(0, len(result.outcome.finish), _ROWS_AT_ONCE):
        texts = [
            map(repr, values[first : first + _ROWS_AT_ONCE].tolist())
            for values in columns.values()
        ]
        yield "".join(
            f"{flow},{','.join(row)}\n"
            for flow, row in enumerate(zip(*texts, strict=True), first)
        )


def title(result: Replay) -> str:
    """Return the title: the name of the case, escaped if it cannot be printed, its size
    and the model.
    """
    case = result.case
    name = case.name if case.name.isprintable() else repr(case.name)
    return f"{name}: {len(case.flows)} flows, {len(case.links)} links, {result.model.kind} network"


def facts(result: Replay) -> dict[str, str]:
    """List facts for people as texts, by name: makespan, lower bound, processor time
    ('solved in'); the error bound if it is not 0; the largest and the median relative
    error if the case has expected ends.
    """
    case = result.case
    outcome = result.outcome
    texts = {
        "makespan": f"{outcome.makespan:.9g} s",
        "lower bound": f"{result.bound:.9g} s",
    }
    if result.bound > 0:
        texts["lower bound"] += (
            f", slowdown over it {outcome.makespan / result.bound:.6g}"
        )
    if outcome.error_bound:
        smaller = f"{outcome.error_bound:.3g}"
        texts["error bound"] = (
            f"exact for flows whose bytes are smaller by at most {smaller}"
        )
    if case.expected is not None and len(case.flows):
        errors = relative_errors(outcome.finish, case.expected)
        texts["relative error"] = (
            f"{errors.max():.3g} at most, {np.median(errors):.3g} in the median, against the"
            " case's own ends"
        )
    texts["solved in"] = f"{result.cpu_seconds:.3g} s of processor time"
    return texts


# --------------------------------------------------------------------------------------- resolution

# Numbers of a case that 64-bit floats cannot hold side by side. The solver adds up times, bytes and
# rates. Beside a large number a small one is lost: a float has 53 bits, and the fluid network takes
# events for one instant that are within 1e-14 of the time (`INSTANT`). Then a flow would end before
# its bytes can have crossed its slowest link. So what is lost must be finer than `SHARE` of the
# small number, or too small for anybody to mind.

SHARE = 1e-3
"""Share of its own time, bytes or capacity that any flow or link may lose."""
NO_TIME = 1e-6
"""s that nobody minds: reached at 3 years of simulated time."""
NO_BYTES = 1.0
"""bytes that nobody minds: reached at 4.5 PB over one link."""
EPSILON = float(np.finfo(np.float64).eps)


def resolution_problems(links: Links, flows: Flows) -> list[Problem]:
    """List the problems of flows and links whose numbers are lost beside others: bytes
    on one link, times, and capacities of links in use.

    Of each kind at most three are listed, and one problem that counts the rest.

    Raises:
        SimulationError: flows wait for each other in a circle.
    """
    link_nbytes = np.append(flows.link_bytes(links), 0.0)
    busiest_nbytes = link_nbytes[flows.routes].max(axis=1, initial=0.0)
    rounding = EPSILON * busiest_nbytes
    bad_flows = np.flatnonzero(
        (flows.nbytes > 0) & (rounding > np.maximum(SHARE * flows.nbytes, NO_BYTES))
    )
    problems = list_first_problems(
        "flows.size",
        f"must not be lost in rounding, which is to {EPSILON:.2g} of all bytes over one of its"
        f" links and must be within {SHARE:g} of the flow's own",
        bad_flows,
        lambda i: f"{flows.nbytes[i]:g} B of {busiest_nbytes[i]:g} B",
        "Put flows of so different sizes into cases of their own.",
    )
    has_bytes = (flows.nbytes > 0) & (flows.routes >= 0).any(axis=1)
    seconds = isolated_seconds(links, flows)
    ends = latest_ends(flows, seconds)
    rounding = INSTANT * ends
    bad_flows = np.flatnonzero(
        has_bytes & (rounding > np.maximum(SHARE * seconds, NO_TIME))
    )
    problems += list_first_problems(
        "flows",
        f"must not be lost in rounding: times are told to {INSTANT:g} of themselves, which must be"
        f" within {SHARE:g} of what the flow takes alone",
        bad_flows,
        lambda i: f"{seconds[i]:g} s that end at {ends[i]:g} s",
        "Let the case begin near 0 s, or put what comes later into a case of its own.",
    )
    used_links = np.unique(flows.routes[flows.routes >= 0])
    largest = float(links.capacity[used_links].max(initial=0.0))
    slow_links = used_links[EPSILON * largest > SHARE * links.capacity[used_links]]
    return problems + list_first_problems(
        "links.capacity",
        f"must not be lost in rounding, which is to {EPSILON:.2g} of the largest capacity and must"
        f" be within {SHARE:g} of this one",
        slow_links,
        lambda i: f"{links.capacity[i]:g} B/s beside {largest:g} B/s",
        f"Give capacities within a factor of {SHARE / EPSILON:.2g}; a link that never binds needs"
        " no more.",
    )
