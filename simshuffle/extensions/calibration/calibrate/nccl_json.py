"""Reader of the JSON that nccl-tests writes with ``-J FILE``; units as of `nccl`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from simshuffle.extensions.calibration.calibrate.files import MeasurementFile
from simshuffle.extensions.calibration.calibrate.nccl import FAILED, make_row
from simshuffle.extensions.calibration.calibrate.nccl_table import OPERATIONS
from simshuffle.extensions.calibration.calibrate.tables import MeasuredNumber

AGAIN = "Run it again."


def document(source: MeasurementFile) -> Iterator[MeasuredNumber]:
    """The rows of the file that ``-J FILE`` writes; ``line`` is the number of the result."""
    try:
        found = json.loads(source.text)
    except json.JSONDecodeError as error:
        rule, remedy = f"must be JSON: {error.msg}", "Was the run cut short? Run it again."
        raise source.bad(error.lineno, rule, remedy=remedy) from None
    except (RecursionError, ValueError) as error:
        raise source.bad(0, "must be JSON", str(error), AGAIN) from None
    results = _list(found, "results")
    if not results:
        return
    devices = [of for of in _list(_value(found, "config"), "devices") if isinstance(of, dict)]
    ranks, hosts = source.layout([str(of.get("hostname")) for of in devices])
    program = str(next(iter(_list(found, "args")), ""))
    for number, result in enumerate(results, 1):
        yield from _of_result(source, number, result, program, ranks, hosts)


def _value(of: Any, key: str) -> Any:
    return of.get(key) if isinstance(of, dict) else None


def _list(of: Any, key: str) -> list[Any]:
    value = _value(of, key)
    return value if isinstance(value, list) else []


def _of_result(
    source: MeasurementFile, number: int, result: Any, program: str, ranks: int, hosts: float
) -> Iterator[MeasuredNumber]:
    if not isinstance(result, dict):
        raise source.bad(number, "each of 'results' must be an object", repr(result), AGAIN)
    test = str(result.get("experiment_name") or program)
    test = test if test.rsplit("/", 1)[-1] in OPERATIONS else program
    for half in ("out_of_place", "in_place"):
        body = result.get(half)
        if body is None:
            continue
        time = body.get("time", body.get("cpu_time")) if isinstance(body, dict) else None
        if time is None:
            rule = f"result {number}: '{half}' must be an object with 'time'"
            raise source.bad(number, rule, repr(body), AGAIN)
        wrong = body.get("nwrong")
        if not isinstance(wrong, int | float | None) or wrong not in {0, None}:
            rule = f"result {number}: must have no wrong values (nwrong)"
            raise source.bad(number, rule, repr(wrong), FAILED)
        yield make_row(source, number, test, ranks, hosts, str(result.get("size")), str(time))
