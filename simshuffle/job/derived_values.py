"""Values that follow from a scenario, as ``simshuffle check -v`` prints them."""

from __future__ import annotations

from simshuffle.job.plan.findings import (
    exchange_nbytes,
    exchange_samples,
    extrapolation_sentences,
)
from simshuffle.job.plan.holding import held_in, max_held_nbytes, staging_seconds
from simshuffle.job.plan.wiring import routing_of
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.scenario.tokens import repeated_shares
from simshuffle.job.scenario.workload import Dataset, Workload
from simshuffle.spec.units import Dimension, readable


def derive_values(scenario: Scenario) -> dict[str, str]:
    """Derived values by name, as text with units, in the order in which they are
    printed.

    Always there are hosts, iterations per epoch, global batch size, samples per rank,
    data set (bytes), storage per host, staging before the first epoch, gradients per
    rank and iteration, and routing. 'storage per host' is the most that a host keeps,
    of the capacity of the tier: the SSD if nothing is kept. 'staging' is a lower bound.

    Only where they apply come sample (defaults that were taken, see `_sample`), those
    of `_tokens`, network (if the topology has a structure in words), samples and bytes
    exchanged (expected values per rank), and extrapolated (curves used outside their
    range).
    """
    workload = scenario.workload
    dataset = scenario.workload.dataset
    exchange = workload.exchange
    storage_tier = held_in(scenario) or "ssd"
    capacity = scenario.cluster.capacity(storage_tier)
    values = {
        "hosts": str(scenario.hosts),
        "iterations per epoch": str(workload.iterations(scenario.world_size)),
        "global batch size": str(workload.local_batch_size * scenario.world_size),
        "samples per rank": f"{dataset.num_samples / scenario.world_size:.1f}",
        "data set": _bytes(dataset.nbytes),
        "storage per host": (
            f"{_bytes(max_held_nbytes(scenario))} of"
            f" {_bytes(capacity)}{' of memory' if storage_tier == 'memory' else ''}"
        ),
        "staging before the first epoch": readable(
            staging_seconds(scenario), Dimension.SECONDS
        ),
        "gradients per rank and iteration": _bytes(workload.model.gradient_size),
    }
    if sample := _sample(dataset):
        values["sample"] = sample
    values |= _tokens(workload)
    values["routing"] = routing_of(scenario.cluster).describe()
    if structure := scenario.cluster.topology.structure():
        values["network"] = structure
    schedule = exchange.exchange_schedule
    if schedule is not None and exchange.fraction is not None:
        count = exchange_samples(scenario)
        values["samples exchanged per rank and epoch"] = f"{count:.1f}"
        values["samples exchanged per rank and iteration"] = (
            f"{exchange.fraction * workload.local_batch_size:.4g}"
        )
        values["bytes exchanged per rank and epoch"] = _bytes(exchange_nbytes(scenario))
    if sentences := extrapolation_sentences(scenario):
        values["extrapolated"] = ". ".join(sentences)
    return values


def _sample(dataset: Dataset) -> str:
    """Return a sentence with the values of a sample that the scenario leaves out, and
    the source of these defaults; '' if the scenario gives every value.

    The values are the standard deviation of the stored size, the decoded size, and the
    times of decoding and encoding.
    """
    size = dataset.decoded_size
    decode = dataset.decode
    encode = dataset.encode
    parts = [
        text
        for written, text in (
            (
                dataset.sample_size is None or dataset.sample_size.std,
                f"{_bytes(dataset.stored.spread)} of standard deviation",
            ),
            (size, f"{_bytes(dataset.decoded_nbytes)} decoded"),
            (
                decode,
                f"decoded in {readable(dataset.decode_seconds, Dimension.SECONDS)}",
            ),
            (
                encode,
                f"encoded in {readable(dataset.encode_seconds, Dimension.SECONDS)}",
            ),
        )
        if written is None
    ]
    return f"{', '.join(parts)}: {dataset.stored_as.source}" if parts else ""


def _tokens(workload: Workload) -> dict[str, str]:
    """Return facts on sequences of tokens and on their sources, as texts by name; {}
    without tokens.

    A sequence has, in the mean, ranges of a file, a share of padding, and its computing
    as a multiple of the model's step times. A source has its share of all sequences,
    how often an epoch goes through it, the share of it that is read again or never, and
    its ranges a sequence. Sources come only where the scenario names them.
    """
    tokens = workload.dataset.tokens
    samples = workload.dataset.num_samples
    if tokens is None:
        return {}
    parts = [
        f"{tokens.ranges:.4g} ranges of a file",
        f"{1.0 - tokens.useful:.3g} of it padding"
        if tokens.useful < 1.0
        else "no padding",
        f"{workload.mean_work:.4g} of the computing that the model's step times say",
    ]
    values = {"sequence of tokens, in the mean": ", ".join(parts)}
    for source in tokens.blended if tokens.sources else []:
        epochs = source.epochs(samples)
        read_before, never_read = repeated_shares(epochs)
        reading = (
            f"{never_read:.3g} of it never read"
            if never_read
            else f"{read_before:.3g} of it read before"
        )
        ranges = 1.0 if tokens.shuffled == "sequences" else source.pieces
        values[f"source {source.name}"] = (
            f"{source.share:.3g} of all sequences, {epochs:.4g} times through it, {reading},"
            f" {ranges:.4g} ranges a sequence"
        )
    return values


def _bytes(value: float) -> str:
    """Return a number of bytes as text with a decimal unit, such as '1.5 MB'."""
    return readable(value, Dimension.NBYTES)
