"""The options of ``study tta``: which training, on which machine, up to which accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simshuffle.errors import refuse
from simshuffle.extensions.learning.filtering.verb import KIND, TrainOptions
from simshuffle.extensions.learning.filtering.verb import VERBS as TRAIN
from simshuffle.job.scenario.options import (
    ScenarioName,
    Set,
    any_of,
    read_assignments,
    result_folders,
    scenario_of,
    study_names,
)
from simshuffle.study.options import (
    COMMAND_LINE,
    Argument,
    Option,
    RefinedOptions,
    words,
)
from simshuffle.study.verb import Verb

if TYPE_CHECKING:
    from simshuffle.study.study import Request, Study


@dataclass(frozen=True, kw_only=True)
class TtaOptions(RefinedOptions):
    """Join accuracy per epoch with simulated time per epoch.

    Of a training and a scenario: what reaches which accuracy when."""

    study: Annotated[
        Path,
        Argument(
            "STUDY",
            "A result folder of 'simshuffle train', or a study, which is trained first.",
            complete=any_of(result_folders, study_names),
        ),
    ]
    scenario: ScenarioName
    scale: Annotated[
        str | None,
        Option(
            "RULE",
            "What to scale where M or N differ: trained, samples or ranks; see docs/tta.md.",
            choices=("trained", "samples", "ranks"),
        ),
    ] = None
    target: Annotated[
        tuple[float, ...],
        Option(
            "ACCURACY",
            "Accuracy to reach, such as 0.9. Default: global minus 1 and minus 3 points.",
            many=True,
            low=0,
            high=1,
        ),
    ] = ()
    world_size: Annotated[
        int | None,
        Option("M", "Ranks of the training. Default: the M with most strategies."),
    ] = None
    batch_norm: Annotated[
        str | None,
        Option(
            "KIND",
            "Batch norm of the training: per_rank, sync or none.",
            complete=words("per_rank", "sync", "none"),
        ),
    ] = None
    variant: Annotated[
        str | None, Option("TEXT", "Variant of the training, as in its tables.")
    ] = None
    statistics: Annotated[
        str,
        Option(
            "NAME",
            "Statistics of the evaluation: own, rank0, pooled or recalibrated.",
            complete=words("own", "rank0", "pooled", "recalibrated"),
        ),
    ] = "own"
    replayed_seeds: Annotated[
        int, Option("K", "Seeds of each setting whose plans are simulated.", low=1)
    ] = 1
    global_source: Annotated[
        tuple[str, ...],
        Option(
            "TIER",
            "Where global shuffle reads: pfs, ssd or object_store. Default: as the scenario,"
            " else pfs.",
            many=True,
            choices=("pfs", "ssd", "object_store"),
        ),
    ] = ()
    set_study: Annotated[
        Mapping[str, Any],
        Option(
            "KEY.PATH=VALUE",
            "Set a value of the study that is trained.",
            read=read_assignments("--set-study", "seeds=3"),
            many=True,
        ),
    ] = field(default_factory=dict)
    set: Set = field(default_factory=dict)


def request(options: TtaOptions) -> tuple[Study[Any], Request[Any]]:
    """Build the request: a simulation of each setting of the training.

    Returns the study and the request. The training is done first, and its result folder
    written, if the user names a study.

    Raises:
        InputError: the training, the scenario or the folder of the result does not fit.
    """
    from simshuffle.extensions.learning.time_to_accuracy import join  # noqa: PLC0415
    from simshuffle.extensions.learning.time_to_accuracy.study import STUDY  # noqa: PLC0415
    from simshuffle.report.folders import check_place  # noqa: PLC0415 - what computes

    if options.out is not None:  # before a training, not after it
        check_place(options.out, replace=True, known_names=STUDY.names)
    scenario = scenario_of(options.scenario, options.set)
    join_request = join.request(options, _training_folder(options), scenario)
    rule = str(join_request.asked["rule"])
    description = (
        f"{len(join_request.values.cells)} simulations. {rule[0].upper()}{rule[1:]}."
    )
    return STUDY, replace(join_request, about=description)


def _training_folder(options: TtaOptions) -> Path:
    """Return the result folder of the training that the user names.

    If that is a study, it is trained to its end first, with as many processes as are
    asked for, and the folder of its result is returned.

    Raises:
        InputError: values are set of a training that is done, or the study is of
            another kind.
    """
    if options.study.is_dir():
        if options.set_study:
            values = ", ".join(
                f"{key}={value}" for key, value in options.set_study.items()
            )
            rule = "has no effect on a training that is done"
            remedy = "Name the study instead."
            refuse("--set-study", rule, values, remedy, COMMAND_LINE)
        return options.study
    from simshuffle.study.perform import Performance  # noqa: PLC0415 - what computes

    (train,) = TRAIN
    train_options = TrainOptions(
        study=str(options.study), set=options.set_study, processes=options.processes
    )
    performance = Performance(train, train_options)
    study, train_request = train.make_request(train_options)
    if study.kind != KIND:
        rule = "must be a study of shuffling strategies"
        refuse("kind", rule, study.kind, "Name another study.", train_options.study)
    folder = performance.perform(study, train_request)[1]
    assert folder is not None  # noqa: S101 - a training is kept
    return folder


VERBS = (
    Verb(
        "study tta",
        TtaOptions,
        request,
        examples=(
            "simshuffle study tta quick quickstart --scale trained",
            "simshuffle study tta results/digits abci-imagenet1k --target 0.9 --scale ranks",
        ),
        kinds={
            "time_to_accuracy": "simshuffle.extensions.learning.time_to_accuracy.study"
        },
        function="tta",
        first_answer="simshuffle.extensions.learning.time_to_accuracy.join:first_answer",
    ),
)
