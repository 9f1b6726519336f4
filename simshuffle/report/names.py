"""Shorten names of runs as far as they still differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.table import Table

from simshuffle.report.excerpt import with_cells


def cut_text(text: str, max_letters: int) -> str:
    """Return the text with at most ``max_letters`` letters; dots stand for the others.

    The three dots count as letters.
    """
    return text if len(text) <= max_letters else f"{text[: max_letters - 3]}..."


def without_schedule(runs: Sequence[str]) -> list[str]:
    """Return names of runs without the schedule, their second word, if all names that
    have a schedule share one.

    Unchanged if some names would then be equal. A name with a schedule is 'partial-0.1
    streamlined @64'; a second word that begins with '@' or has a '=' is no schedule.
    """
    words = [run.split(" ") for run in runs]
    second_words = {
        run_words[1]
        for run_words in words
        if len(run_words) > 1
        and run_words[1][:1] not in {"@", ""}
        and "=" not in run_words[1]
    }
    if len(second_words) != 1:
        return list(runs)
    shortened = [
        " ".join(
            [
                run_words[0],
                *(word for word in run_words[1:] if word not in second_words),
            ]
        )
        for run_words in words
    ]
    return shortened if len(set(shortened)) == len(set(runs)) else list(runs)


def short_names(runs: Iterable[str]) -> dict[str, str]:
    """Return short names by the names of runs, the longest first; unchanged names are
    left out.

    They are shortened by `without_schedule`.
    """
    names = sorted(dict.fromkeys(runs), key=len, reverse=True)
    pairs = zip(names, without_schedule(names), strict=True)
    return {name: short for name, short in pairs if name != short}


def shorten_names(text: str, short: Mapping[str, str]) -> str:
    """Return the text with each name of ``short`` replaced by its short name.

    Names are replaced in the order of ``short``, inside of words, too: longer names
    must come first, as from `short_names`.
    """
    for name, short_name in short.items():
        text = text.replace(name, short_name)
    return text


def with_short_names(
    parts: Iterable[str | Table], short: Mapping[str, str]
) -> Iterator[str | Table]:
    """Yield texts and tables with the names of ``short`` replaced by their short names.

    Names are replaced in the cells of a table, not in its title and headings.
    """
    for part in parts:
        if isinstance(part, str):
            yield shorten_names(part, short)
        else:
            yield (
                with_cells(part, lambda _, cell: shorten_names(cell, short))
                if short
                else part
            )


def name_subset(runs: Sequence[str], all_runs: Sequence[str]) -> str:
    """Return words that name ``runs`` among ``all_runs``; '' if they are all.

    'on 64 ranks' or 'on 32 and 64 ranks' if they are all runs on as many ranks, by the
    '@64' at the end of their names; else their names.

    Args:
        runs: names, one or more, each once.
        all_runs: ``runs`` and any others.
    """
    if len(runs) == len(all_runs):
        return ""
    ranks = {run: run.rpartition(" @")[2] for run in all_runs}
    own_ranks = {ranks[run] for run in runs}
    if all(text.isdecimal() for text in own_ranks) and {
        run for run in all_runs if ranks[run] in own_ranks
    } == set(runs):
        return f"on {' and '.join(f'{int(text):,}' for text in sorted(own_ranks, key=int))} ranks"
    return ", ".join(runs)
