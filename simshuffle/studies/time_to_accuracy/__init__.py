"""Time to accuracy: what a training reached after each epoch, joined with the simulated time of its
epochs. No torch."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simshuffle.scenario.scenario import Scenario
    from simshuffle.studies.time_to_accuracy.study import TimeToAccuracy

__all__ = ["time_to_accuracy"]


def time_to_accuracy(
    folder: str | Path, scenario: Scenario, *, processes: int | None = 1, **options: Any
) -> TimeToAccuracy:
    """Join a training with the simulated time of its epochs.

    Args:
        folder: result folder of `simshuffle train`.
        scenario: cluster, model, sizes and step times; its sweep is not followed.
        processes: simulations at once; None for one on each core. More than one starts Python anew
            in each: a script that asks for it keeps its calls below ``if __name__ == "__main__":``.
        **options: as of `simshuffle.studies.time_to_accuracy.verb.TtaOptions`.

    Raises:
        InputError: the folder is no study, or does not fit; nothing of it can be simulated; an
            option is not valid.
    """
    # what computes; the package is imported where verbs are listed
    from simshuffle.studies.time_to_accuracy.join import request  # noqa: PLC0415
    from simshuffle.studies.time_to_accuracy.study import STUDY, TimeToAccuracy  # noqa: PLC0415
    from simshuffle.studies.time_to_accuracy.verb import TtaOptions  # noqa: PLC0415
    from simshuffle.study import engine  # noqa: PLC0415
    from simshuffle.study.executors import Local  # noqa: PLC0415
    from simshuffle.study.store import Disk  # noqa: PLC0415

    place = Path(folder)
    wanted = request(TtaOptions(study=place, scenario=scenario, **options), place, scenario)
    with TemporaryDirectory(prefix="simshuffle-") as cells:
        result = engine.run(STUDY, wanted, Local(processes), Disk(Path(cells)))
    assert isinstance(result, TimeToAccuracy)  # noqa: S101 - what its study makes
    return result
