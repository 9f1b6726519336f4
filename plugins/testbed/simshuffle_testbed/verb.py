"""What ``simshuffle machine testbed`` is asked: which patterns, on a network of what
shape.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simshuffle.study.options import Option, Options, words
from simshuffle.study.verb import Verb

if TYPE_CHECKING:
    from simshuffle.study.study import Request, Result, Study


@dataclass(frozen=True, kw_only=True)
class TestbedOptions(Options):
    """Measure exchange patterns between namespaces of this host.

    And simulate the same; needs root."""

    pattern: Annotated[
        tuple[str, ...],
        Option(
            "NAME",
            "A pattern. Default: all.",
            many=True,
            complete=words(
                place="simshuffle.extensions.calibration.validation.testbed_patterns:PATTERNS"
            ),
        ),
    ] = ()
    leaves: Annotated[int, Option("N", "Leaf switches.")] = 2
    hosts_per_leaf: Annotated[
        int, Option("N", "Hosts below each; at most 16 hosts in all.")
    ] = 4
    spines: Annotated[
        int,
        Option(
            "N",
            "Switches above, with a link to each leaf; fewer than hosts below a leaf taper the"
            " tree.",
        ),
    ] = 2
    rate: Annotated[
        str, Option("RATE", "Rate of every link, headers included; at most 200 Mbit/s.")
    ] = "40 Mbit/s"
    nbytes: Annotated[
        str | None,
        Option(
            "SIZE", "Bytes that a host sends. Default: 6 MB, or 1.5 MB with --quick."
        ),
    ] = None
    repetitions: Annotated[
        int | None, Option("N", "Runs of each pattern. Default: 5, or 2 with --quick.")
    ] = None
    seed: Annotated[int, Option("N", "Of the random pairs and permutations.")] = 1
    limit: Annotated[
        str, Option("TIME", "Stop everything after this time; at most 3600 s.")
    ] = "900 s"
    quick: Annotated[
        bool,
        Option("", "Few patterns, few bytes, two runs: seconds instead of minutes."),
    ] = False
    keep_as: Annotated[
        Path | None,
        Option("FILE", "CSV file for the summary, as in validation/testbed/."),
    ] = None


def request(options: TestbedOptions) -> tuple[Study[Any], Request[Any]]:
    """What was measured just now, to be compared."""
    from simshuffle.extensions.calibration.validation.testbed_patterns import (  # noqa: PLC0415
        NamespaceShape,
    )
    from simshuffle.report.folders import check_place  # noqa: PLC0415
    from simshuffle.spec.units import Dimension  # noqa: PLC0415
    from simshuffle.spec.whole_file import check_target  # noqa: PLC0415 - what computes
    from simshuffle.study.perform import share_told  # noqa: PLC0415
    from simshuffle_testbed import measure, study  # noqa: PLC0415

    quick = options.quick
    quantity = measure.quantity
    rate = quantity("--rate", options.rate, Dimension.BANDWIDTH)
    patterns, left_out = measure.chosen(options.pattern, quick=quick)
    nbytes = options.nbytes or ("1.5 MB" if quick else "6 MB")
    settings = measure.Settings(
        NamespaceShape(options.leaves, options.hosts_per_leaf, options.spines, rate),
        int(quantity("--nbytes", nbytes, Dimension.NBYTES)),
        (2 if quick else 5) if options.repetitions is None else options.repetitions,
        options.seed,
        patterns,
        left_out,
        quantity("--limit", options.limit, Dimension.SECONDS),
    )
    measure.check(settings)
    # before a long measurement, not after it
    if options.keep_as is not None:
        check_target(options.keep_as, option="--keep-as")
    if options.out is not None:
        check_place(options.out, replace=options.force, known_names=study.STUDY.names)
    with share_told("measurement") as progress:
        measured = measure.measure_all(settings, progress)
    return study.STUDY, replace(
        study.request(measured), name=f"{measured.date:%Y%m%d-%H%M%S}"
    )


def _keep(result: Result, folder: Path, options: TestbedOptions) -> Iterable[str]:
    """Write the summary where it is wanted too."""
    from simshuffle.spec.whole_file import whole_file  # noqa: PLC0415 - what writes

    if options.keep_as is None:
        return []
    with whole_file(options.keep_as) as file:
        result.derived["summary"].to_csv(file, index=False)
    return [f"Summary: {options.keep_as}"]


VERBS = (
    Verb(
        "machine testbed",
        TestbedOptions,
        request,
        examples=(
            "sudo simshuffle machine testbed --quick",
            "sudo simshuffle machine testbed --leaves 4 --spines 2 --out measured",
        ),
        group="Describe",
        kinds={"testbed": "simshuffle_testbed.study"},
        function="testbed",
        done="measured",
        measures=True,
        after=_keep,
    ),
)
