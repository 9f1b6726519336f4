"""Reader of the JSON that nccl-tests writes with ``-J FILE``; units as of `nccl`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from simshuffle.extensions.calibration.calibrate.files import MeasurementFile
from simshuffle.extensions.calibration.calibrate.nccl import FAILED_REMEDY, make_row
from simshuffle.extensions.calibration.calibrate.nccl_table import OPERATION_OF_PROGRAM
from simshuffle.extensions.calibration.calibrate.tables import MeasuredNumber

REMEDY = "Run it again."


def read_document(source: MeasurementFile) -> Iterator[MeasuredNumber]:
    """Yield the rows of the file that ``-J FILE`` writes; ``line`` is the number of the
    result.

    Without results it yields nothing.

    Raises:
        InputError: the file is no JSON, or a result is not valid (`read_result`).
    """
    try:
        document = json.loads(source.text)
    except json.JSONDecodeError as error:
        rule = f"must be JSON: {error.msg}"
        remedy = "Was the run cut short? Run it again."
        raise source.error_in_line(error.lineno, rule, remedy=remedy) from None
    except (RecursionError, ValueError) as error:
        raise source.error_in_line(0, "must be JSON", str(error), REMEDY) from None
    results = list_member(document, "results")
    if not results:
        return
    devices = [
        device
        for device in list_member(member(document, "config"), "devices")
        if isinstance(device, dict)
    ]
    ranks, hosts = source.ranks_and_hosts(
        [str(device.get("hostname")) for device in devices]
    )
    program = str(next(iter(list_member(document, "args")), ""))
    for result_number, result in enumerate(results, 1):
        yield from read_result(
            source, result_number, result, program=program, ranks=ranks, hosts=hosts
        )


def member(parent: Any, key: str) -> Any:
    """Return a member of a JSON object; None if there is none, or ``parent`` is no
    object.
    """
    return parent.get(key) if isinstance(parent, dict) else None


def list_member(parent: Any, key: str) -> list[Any]:
    """Return a list in a JSON object; empty if there is none."""
    value = member(parent, key)
    return value if isinstance(value, list) else []


def read_result(
    source: MeasurementFile,
    result_number: int,
    result: Any,
    *,
    program: str,
    ranks: int,
    hosts: float,
) -> Iterator[MeasuredNumber]:
    """Yield the times of a result, out of place and in place.

    A placement that is missing (or null) is skipped; without both nothing is yielded.

    Args:
        source: the file.
        result_number: of the result in the file, from 1.
        result: the JSON object of one size.
        program: program of nccl-tests, where the result does not name it.
        ranks: processes that took part.
        hosts: hosts that they filled; nan if not known.

    Raises:
        InputError: the result is no object, a placement of it has no time, or its check
            found wrong values.
    """
    if not isinstance(result, dict):
        rule = "each of 'results' must be an object"
        raise source.error_in_line(result_number, rule, repr(result), REMEDY)
    test = str(result.get("experiment_name") or program)
    test = test if test.rsplit("/", 1)[-1] in OPERATION_OF_PROGRAM else program
    for placement in ("out_of_place", "in_place"):
        timing = result.get(placement)
        if timing is None:
            continue
        time = (
            timing.get("time", timing.get("cpu_time"))
            if isinstance(timing, dict)
            else None
        )
        if time is None:
            rule = (
                f"result {result_number}: '{placement}' must be an object with 'time'"
            )
            raise source.error_in_line(result_number, rule, repr(timing), REMEDY)
        wrong = timing.get("nwrong")
        if not isinstance(wrong, int | float | None) or wrong not in {0, None}:
            rule = f"result {result_number}: must have no wrong values (nwrong)"
            raise source.error_in_line(result_number, rule, repr(wrong), FAILED_REMEDY)
        yield make_row(
            source,
            result_number,
            test,
            ranks=ranks,
            hosts=hosts,
            size=str(result.get("size")),
            time=str(time),
        )
