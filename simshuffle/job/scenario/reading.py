"""From what a scenario's file holds to plain values that stand alone: fragments
included, values set, names replaced by what they name, files located.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from simshuffle.errors import Problem, ScenarioError
from simshuffle.job.reliability.processes import process_by_name
from simshuffle.job.scenario.calibrated import forget, include
from simshuffle.job.scenario.other_kinds import complete, settle_kinds
from simshuffle.report.folders import INPUTS
from simshuffle.spec.library import (
    catalog_entry,
    find_file,
    is_file,
    parse_kind,
    read_yaml,
)
from simshuffle.spec.overrides import (
    References,
    add_axis_values,
    expand_name,
    keys_overlap,
    pin_axis,
    plain_copy,
    sort_outermost_first,
)
from simshuffle.spec.switching import KindSwitch, PendingSwitches


@dataclass
class Resolved:
    """The plain values of a scenario that needs no other file."""

    document: dict[str, Any]
    problems: list[Problem]  # what is wrong, each once
    # file of the fragment that set a dotted key; without keys that were set otherwise later
    origin: dict[str, str]
    switches: list[KindSwitch]  # what became of records whose kind was replaced


def resolve(
    raw: Mapping[str, Any],
    values: Mapping[str, Any],
    folder: Path | None,
    record: type[BaseModel],
) -> Resolved:
    """The plain values of ``record``, a scenario or part of one, from what its file in
    ``folder`` holds (None: the working directory), and ``values`` set instead, by
    dotted key.

    ``raw`` is not changed. A key that is set is no longer swept, and loses its records
    of measurements. Files that are named are read; what is wrong is not raised, but is
    among the problems.
    """
    document: dict[str, Any] = plain_copy(dict(raw))
    problems: list[Problem] = []
    references = _references(document, folder)
    leftovers = PendingSwitches(record)
    if "include" in values:
        document["include"] = values["include"]

    def put_here(key: str, value: Any, value_problems: list[Problem]) -> bool:
        """Set a key of the document and drop its records of measurements; return False
        if it cannot be set.
        """
        forget(document, key)
        return leftovers.set_key(document, key, value, value_problems, references)

    origin = include(document, folder, put_here, problems)
    switches = settle_kinds(document, leftovers, dict.fromkeys(origin))
    for key, value in sort_outermost_first(values).items():
        if key == "include":
            continue
        if put_here(key, value, problems):
            sweep = document.setdefault("sweep", {})
            if key != "sweep" and isinstance(sweep, dict):
                pin_axis(sweep, key, value, "sweep", problems)
        origin = {
            origin_key: path
            for origin_key, path in origin.items()
            if not keys_overlap(origin_key, key)
        }
    switches += settle_kinds(document, leftovers, values)
    for key in references:
        expand_name(document, key, references, problems)
    _locate_files(document, folder)
    sweep = document.get("sweep")
    if (
        folder is not None
        and isinstance(sweep, dict)
        and isinstance(sweep.get("cluster"), list)
    ):
        for index, reference in enumerate(sweep["cluster"]):
            holder = {"cluster": reference}
            cluster_problems = list[Problem]()
            expand_name(holder, "cluster", references, cluster_problems)
            problems += [
                add_axis_values(problem, sweep, {"cluster": reference})
                for problem in cluster_problems
            ]
            _locate_files(holder, folder)
            sweep["cluster"][index] = holder["cluster"]
    if isinstance(sweep, dict) and isinstance(sweep.get("workload.exchange"), list):
        exchanges = sweep["workload.exchange"]
        exchanges[:] = [locate_exchange(exchange, folder) for exchange in exchanges]
    complete(document, switches)
    return Resolved(document, list(dict.fromkeys(problems)), origin, switches)


def locate_exchange(exchange: Any, folder: Path | None) -> Any:
    """An exchange that is swept over; if it names a file, as a record with the absolute
    path and the SHA-256 of the file, else as it is. ``folder`` is what paths begin
    from; None for the working directory.
    """
    key = "workload.exchange"
    holder: dict[str, Any] = {"workload": {"exchange": plain_copy(exchange)}}
    expand_name(
        holder, key, {key: parse_kind}, []
    )  # what is not valid is reported with the runs
    _locate_files(holder, folder)
    located = holder["workload"]["exchange"]
    return located if isinstance(located, dict) and "sha256" in located else exchange


def _references(document: Mapping[str, Any], folder: Path | None) -> References:
    """Return what a scenario may name, by key; a profile of its own comes before one of
    the catalog.
    """

    def model(name: str) -> dict[str, Any]:
        """Return a copy of the profile with this name; raises as `catalog_entry`."""
        profiles = document.get("models")
        entry = profiles.get(name) if isinstance(profiles, dict) else None
        if isinstance(entry, dict):
            return {"name": name, **copy.deepcopy(entry)}
        return catalog_entry("models", name)

    return {
        "cluster": lambda text: _cluster(text, folder),
        "cluster.routing": parse_kind,
        "failures": process_by_name,
        "workload.dataset": lambda name: catalog_entry("datasets", name),
        "workload.exchange": parse_kind,
        "workload.parallelism": parse_kind,
        "workload.exchange.schedule": parse_kind,
        "workload.model": model,
    }


def _cluster(text: str, folder: Path | None) -> dict[str, Any]:
    """The plain values of a cluster, named as a file or as a shipped one; paths in it
    that its folder holds are absolute.

    Raises:
        ScenarioError: there is no such file, or it is not the mapping of one cluster.
    """
    path = find_file(text, "topologies", folder)
    documents = read_yaml(path)
    if len(documents) == 1 and isinstance(documents[0], dict):
        _find_beside(documents[0], path.parent)
        return documents[0]
    count = len(documents)
    content = f"{count} documents" if count != 1 else type(documents[0]).__name__
    rule = f"{path} must hold the mapping of one cluster"
    raise ScenarioError(Problem("", rule, content, "See topologies/ for examples."))


_NAMING_FILES = (
    (None, "failures", "trace"),
    ("cluster", "topology", "custom"),
    ("cluster", "routing", "forwarding_tables"),
    ("workload", "exchange", "recorded"),
)
"""Sections (None: the scenario itself), and the kind of the key that names a file by
its path.
"""


def _naming_files(raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the records that name a file, in the scenario and in its jobs."""
    jobs = raw.get("jobs")
    for job in jobs.values() if isinstance(jobs, dict) else ():
        yield from _naming_files(job) if isinstance(job, dict) else ()
    for section, key, kind in _NAMING_FILES:
        holder = raw if section is None else raw.get(section)
        record = holder.get(key) if isinstance(holder, dict) else None
        if (
            isinstance(record, dict)
            and record.get("kind") == kind
            and isinstance(record.get("path"), str)
        ):
            yield record


def _find_beside(cluster: dict[str, Any], folder: Path) -> None:
    """Make a path in a cluster absolute, if the folder of the cluster's file holds that
    path.
    """
    for record in _naming_files({"cluster": cluster}):
        beside = folder / record["path"]
        if is_file(beside):
            record["path"] = str(beside.resolve())


def _locate_files(raw: dict[str, Any], folder: Path | None) -> None:
    """Make the paths of the files that a scenario names absolute, in place, and note
    the ``sha256`` of files that exist, where none stands yet. So the resolved scenario
    stands alone.
    """
    for record in _naming_files(raw):
        beside = (folder or Path()) / record["path"]
        path = beside if is_file(beside) else Path(record["path"])
        with contextlib.suppress(OSError, ValueError):
            record["path"] = str(path.resolve())
        if is_file(path):
            record.setdefault("sha256", hashlib.sha256(path.read_bytes()).hexdigest())


# ------------------------------------------------------------------- files, as results hold them


def by_content(value: Any) -> Any:
    """Return a copy of plain values in which every file whose SHA-256 stands beside its
    path is named as a result folder holds it, after its contents, so that nothing
    depends on where it was. Other paths stay.
    """
    if isinstance(value, dict):
        inner_values = {key: by_content(inner) for key, inner in value.items()}
        return (
            inner_values | {"path": _place(value)}
            if _names_a_file(value)
            else inner_values
        )
    if isinstance(value, list):
        return [by_content(inner) for inner in value]
    return value


def identity_of(document: Mapping[str, Any]) -> Any:
    """Return the plain values that identify a scenario: `by_content`, without name,
    description and measured runs, which no simulation depends on.
    """
    without = {"name", "description", "measured"}
    return by_content({k: v for k, v in document.items() if k not in without})


def files(value: Any) -> dict[str, Path]:
    """The files whose SHA-256 stands beside their path in plain values, at any depth,
    by their names in the folder `INPUTS` of a result.
    """
    path_by_name = {}
    if isinstance(value, dict):
        if _names_a_file(value):
            path_by_name[Path(_place(value)).name] = Path(value["path"])
        value = list(value.values())
    for inner in value if isinstance(value, list) else ():
        path_by_name |= files(inner)
    return path_by_name


def _names_a_file(record: dict[Any, Any]) -> bool:
    """Return True if a record has a path and a SHA-256."""
    return isinstance(record.get("path"), str) and isinstance(record.get("sha256"), str)


def _place(record: dict[str, Any]) -> str:
    """Return the path in a result folder of the file that a record names."""
    return f"{INPUTS}/{record['sha256'][:16]}{Path(record['path']).suffix}"
