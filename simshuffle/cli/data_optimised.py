"""The verb that trains, for studies of data-optimised training."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from simshuffle.cli.common import say

if TYPE_CHECKING:
    from simshuffle.studies.filtering.folder import FilterResult
    from simshuffle.train.pool import Progress

INTERRUPTED = 130


def is_data_optimised(reference: str) -> bool:
    """Whether the file of a study says that it is one of data-optimised training."""
    from simshuffle.spec.library import find
    from simshuffle.train.study import document

    return bool(document(find(reference, "studies")).get("kind") == "data_optimised")


def train_data_optimised(
    reference: str,
    values: dict[str, Any],
    *,
    out: Path | None,
    processes: int | None,
    device: str,
    json: bool,
    force: bool,
    bars: Callable[[int], AbstractContextManager[Progress]],
) -> None:
    """Carry out the study and show its report. Arguments as of the verb; ``bars`` shows the
    progress of so many runs."""
    from simshuffle.train import filtering as data_optimised

    study = data_optimised.load_study(reference, values)
    mark = data_optimised.study_fingerprint(study, device)
    folder = out if out is not None else Path("results") / f"{study.name}-{mark}"
    result = None if force else data_optimised.existing(folder, mark)
    if result is not None:
        say(f"{folder} already holds this study, finished; nothing was trained.")
    else:
        at_once = processes or (None if device == "cpu" else 1)
        try:
            with bars(data_optimised.count_jobs(study)) as progress:
                result = data_optimised.run_study(
                    study, folder, progress=progress, processes=at_once, device=device, force=force
                )
        except KeyboardInterrupt:
            say(f"Interrupted. What was finished is in {folder}; the same command goes on with it.")
            raise typer.Exit(INTERRUPTED) from None
    _show(result, folder, json=json)


def _show(result: FilterResult, folder: Path, *, json: bool) -> None:
    from simshuffle.studies.filtering import folder as folders

    if json:
        typer.echo(folders.as_json(result.tables))
    else:
        typer.echo((folder / "report.txt").read_text(encoding="utf-8"))
        drawn = ", ".join(str(path) for path in sorted(folder.glob("*.png")))
        typer.echo(f"Tables: {folder}\nFigures: {drawn}, and as .pdf")
    if result.meta["lost"]:
        say(f"{len(result.meta['lost'])} runs were lost; the same command tries them again.")
        raise typer.Exit(1)
