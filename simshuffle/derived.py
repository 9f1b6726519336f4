"""What follows from a scenario before anything is simulated: the numbers that ``simshuffle check`` prints."""

from __future__ import annotations

from simshuffle.plan import staging_seconds
from simshuffle.scenario import Scenario
from simshuffle.units import Dimension, readable


def derived(scenario: Scenario) -> dict[str, str]:
    """Derived values by name, as text with units; samples and bytes are expected values per rank."""
    workload, dataset = scenario.workload, scenario.workload.dataset
    exchange = workload.exchange
    out = {
        "hosts": str(scenario.hosts),
        "iterations per epoch": str(workload.iterations(scenario.world_size)),
        "global batch size": str(workload.local_batch_size * scenario.world_size),
        "samples per rank": f"{dataset.num_samples / scenario.world_size:.1f}",
        "data set": _bytes(dataset.nbytes),
        "storage per host": f"{_bytes(scenario.storage_per_host)} of {_bytes(scenario.cluster.ssd.capacity)}",
        "staging before the first epoch": readable(staging_seconds(scenario), Dimension.SECONDS),
        "gradients per rank and iteration": _bytes(workload.model.gradient_size),
    }
    schedule = exchange.carried_out
    if schedule is not None and exchange.fraction is not None:
        count = exchange_samples(scenario)
        out["samples exchanged per rank and epoch"] = f"{count:.1f}"
        out["samples exchanged per rank and iteration"] = f"{exchange.fraction * workload.local_batch_size:.4g}"
        out["bytes exchanged per rank and epoch"] = _bytes(exchange_nbytes(scenario))
    return out


def exchange_samples(scenario: Scenario) -> float:
    """Samples that a rank sends in an epoch: Q N / M."""
    fraction = scenario.workload.exchange.fraction or 0.0
    return fraction * scenario.workload.dataset.num_samples / scenario.world_size


def exchange_nbytes(scenario: Scenario) -> float:
    """Expected bytes that a rank sends in an epoch, in the form in which the schedule sends them."""
    schedule, dataset = scenario.workload.exchange.carried_out, scenario.workload.dataset
    if schedule is None:
        return 0.0
    each = dataset.decoded_size.mean if schedule.payload == "decoded" else dataset.sample_size.mean
    return exchange_samples(scenario) * each


def _bytes(value: float) -> str:
    return readable(value, Dimension.NBYTES)
