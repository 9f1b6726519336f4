"""What follows from a scenario before anything is simulated: the numbers that ``simshuffle check``
prints."""

from __future__ import annotations

from simshuffle.plan.epochs import staging_seconds
from simshuffle.plan.findings import exchange_nbytes, exchange_samples, extrapolated
from simshuffle.plan.holding import held_in, most_held
from simshuffle.plan.wiring import routing
from simshuffle.scenario.scenario import Scenario
from simshuffle.scenario.tokens import repeated
from simshuffle.scenario.workload import Dataset, Workload
from simshuffle.spec.units import Dimension, readable


def derived(scenario: Scenario) -> dict[str, str]:
    """Derived values by name, as text with units; samples and bytes are expected values per
    rank."""
    workload, dataset = scenario.workload, scenario.workload.dataset
    exchange = workload.exchange
    where = held_in(scenario) or "ssd"
    room = scenario.cluster.capacity(where)
    out = {
        "hosts": str(scenario.hosts),
        "iterations per epoch": str(workload.iterations(scenario.world_size)),
        "global batch size": str(workload.local_batch_size * scenario.world_size),
        "samples per rank": f"{dataset.num_samples / scenario.world_size:.1f}",
        "data set": _bytes(dataset.nbytes),
        "storage per host": (
            f"{_bytes(most_held(scenario))} of"
            f" {_bytes(room)}{' of memory' if where == 'memory' else ''}"
        ),
        "staging before the first epoch": readable(staging_seconds(scenario), Dimension.SECONDS),
        "gradients per rank and iteration": _bytes(workload.model.gradient_size),
    }
    if sample := _sample(dataset):
        out["sample"] = sample
    out |= _tokens(workload)
    out["routing"] = routing(scenario.cluster).describe()
    if structure := scenario.cluster.topology.structure():
        out["network"] = structure
    schedule = exchange.exchange_schedule
    if schedule is not None and exchange.fraction is not None:
        count = exchange_samples(scenario)
        out["samples exchanged per rank and epoch"] = f"{count:.1f}"
        out["samples exchanged per rank and iteration"] = (
            f"{exchange.fraction * workload.local_batch_size:.4g}"
        )
        out["bytes exchanged per rank and epoch"] = _bytes(exchange_nbytes(scenario))
    if sentences := extrapolated(scenario):
        out["extrapolated"] = ". ".join(sentences)
    return out


def _sample(dataset: Dataset) -> str:
    """What follows from the mean size of a sample, because the data set does not say it; '' if it
    does."""
    size, decode, encode = dataset.decoded_size, dataset.decode, dataset.encode
    parts = [
        text
        for given, text in (
            (
                dataset.sample_size is None or dataset.sample_size.std,
                f"{_bytes(dataset.stored.spread)} of standard deviation",
            ),
            (size, f"{_bytes(dataset.decoded_nbytes)} decoded"),
            (decode, f"decoded in {readable(dataset.decode_seconds, Dimension.SECONDS)}"),
            (encode, f"encoded in {readable(dataset.encode_seconds, Dimension.SECONDS)}"),
        )
        if given is None
    ]
    return f"{', '.join(parts)}: {dataset.stored_as.source}" if parts else ""


def _tokens(workload: Workload) -> dict[str, str]:
    """How sequences of tokens are packed, and what an epoch reads of each source; {} without."""
    tokens, samples = workload.dataset.tokens, workload.dataset.num_samples
    if tokens is None:
        return {}
    parts = [
        f"{tokens.ranges:.4g} ranges of a file",
        f"{1.0 - tokens.useful:.3g} of it padding" if tokens.useful < 1.0 else "no padding",
        f"{workload.mean_work:.4g} of the computing that the model's step times say",
    ]
    out = {"sequence of tokens, in the mean": ", ".join(parts)}
    for source in tokens.blended if tokens.sources else []:
        epochs = source.epochs(samples)
        again, never = repeated(epochs)
        told = f"{never:.3g} of it never read" if never else f"{again:.3g} of it read before"
        ranges = 1.0 if tokens.shuffled == "sequences" else source.pieces
        out[f"source {source.name}"] = (
            f"{source.share:.3g} of all sequences, {epochs:.4g} times through it, {told},"
            f" {ranges:.4g} ranges a sequence"
        )
    return out


def _bytes(value: float) -> str:
    return readable(value, Dimension.NBYTES)
