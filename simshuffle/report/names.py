"""Names of runs, as short as tells them apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.table import Table

from simshuffle.report.excerpt import with_cells


def cut_text(text: str, most: int) -> str:
    """Return the text with at most so many letters; dots stand for the others."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def without_schedule(runs: Sequence[str]) -> list[str]:
    """Return names of runs without their second word, where all that have one have the same: the
    schedule, as in 'partial-0.1 streamlined @64'."""
    words = [run.split(" ") for run in runs]
    second = {
        own[1]
        for own in words
        if len(own) > 1 and own[1][:1] not in {"@", ""} and "=" not in own[1]
    }
    if len(second) != 1:
        return list(runs)
    plain = [" ".join([own[0], *(word for word in own[1:] if word not in second)]) for own in words]
    return plain if len(set(plain)) == len(set(runs)) else list(runs)


def short_names(runs: Iterable[str]) -> dict[str, str]:
    """Return `without_schedule` of each run that it changes, by its name, the longest first."""
    names = sorted(dict.fromkeys(runs), key=len, reverse=True)
    pairs = zip(names, without_schedule(names), strict=True)
    return {name: short for name, short in pairs if name != short}


def shortened(text: str, short: Mapping[str, str]) -> str:
    """Return the text with each name of ``short`` as this says."""
    for name, other in short.items():
        text = text.replace(name, other)
    return text


def with_short_names(
    parts: Iterable[str | Table], short: Mapping[str, str]
) -> Iterator[str | Table]:
    """Yield texts and tables with the names of ``short`` `shortened`."""
    for part in parts:
        if isinstance(part, str):
            yield shortened(part, short)
        else:
            yield with_cells(part, lambda _, cell: shortened(cell, short)) if short else part


def where_of(runs: Sequence[str], among: Sequence[str]) -> str:
    """Return which runs something is said of, in words: '' of all ``among`` which they are, 'on 64
    ranks' of all on as many, else their names."""
    if len(runs) == len(among):
        return ""
    ranks = {run: run.rpartition(" @")[2] for run in among}
    own = {ranks[run] for run in runs}
    if all(text.isdecimal() for text in own) and {run for run in among if ranks[run] in own} == set(
        runs
    ):
        return f"on {' and '.join(f'{int(text):,}' for text in sorted(own, key=int))} ranks"
    return ", ".join(runs)
