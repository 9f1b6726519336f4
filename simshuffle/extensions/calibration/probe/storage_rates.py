"""The measured rates of a file system, and the fragment of a scenario that holds them."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simshuffle.spec.fragment import FragmentEntry, fragment_text
from simshuffle.spec.units import Dimension, readable
from simshuffle.version import __version__

READERS = (1, 2, 4, 8)
"""Threads that read at once."""
MIN_DEVICE_SHARE = 0.5
"""Least share of the bytes that must come from the device of a local file system."""


@dataclass(frozen=True)
class StorageRates:
    """The measured rates of a file system: all rounds of each number of readers."""

    mount: str  # file system and where it is mounted
    is_shared: bool  # whether it is one that many hosts share
    # by number of readers, ascending, of each round: small files opened, read and closed a second
    open_rates: Mapping[int, Sequence[float]]
    # by number of readers, ascending, of each round: bytes/s of the large file
    read_bandwidths: Mapping[int, Sequence[float]]
    create_rate: float  # small files created, written and synchronised a second
    write_bandwidth: float  # bytes/s of the large file, synchronised
    counts: tuple[int, float]  # small files, and bytes of the large file
    # share of the bytes that came from the device; None if the kernel does not count it, or many
    # hosts share the file system
    device_share: float | None

    def to_yaml(self) -> str:
        """Return the fragment for a scenario, as YAML; a comment warns where less than
        `MIN_DEVICE_SHARE` came from a device. The text names this host.
        """
        num_small_files, nbytes = self.counts
        host = platform.node() or "a host"
        source = (
            f"simshuffle {__version__} probe --storage on {host}, {self.mount}:"
            f" {num_small_files} files of 4 KiB and one of"
            f" {readable(nbytes, Dimension.NBYTES, 3)}, medians"
            f" of {len(self.open_rates[READERS[0]])} rounds with"
            f" {', '.join(map(str, self.open_rates))} readers, past the page cache"
        )
        create_rate = readable(self.create_rate, Dimension.FREQUENCY, 3)
        comments = [
            f"Measured too: {create_rate} files created, written and synchronised."
        ]
        if self.device_share is not None and self.device_share < MIN_DEVICE_SHARE:
            comments.append(
                f"Beware: only {self.device_share:.0%} of the bytes read came from a device, the"
                " rest from a cache or from memory."
            )
        comments.append(
            "Caches of servers and devices may have answered: the probe had just written the files."
        )
        return fragment_text(source, self.list_entries(), comments)

    def list_entries(self) -> list[FragmentEntry]:
        """Return the entries of a scenario: latency, bandwidths, and rate of opens.

        A shared file system is the parallel one, with the highest rate of opens first
        and the bandwidth of a client last. Another is the SSD, with a curve of opens by
        readers last. The bandwidth of writes has no interval.
        """
        tier = "parallel_file_system" if self.is_shared else "ssd"
        key = f"cluster.{tier}"
        latencies = [1 / rate for rate in self.open_rates[READERS[0]]]  # s
        entries = [
            median_entry(
                f"{key}.latency",
                latencies,
                Dimension.SECONDS,
                "open, read, close; one reader",
            ),
            self.highest_rate_entry(
                f"{key}.read_bandwidth", self.read_bandwidths, Dimension.BANDWIDTH
            ),
            FragmentEntry(
                f"{key}.write_bandwidth",
                readable(self.write_bandwidth, Dimension.BANDWIDTH),
                "one writer, synchronised",
            ),
        ]
        if not self.is_shared:
            return [*entries, self.open_curve_entry(f"{key}.iops")]
        return [
            self.highest_rate_entry(
                f"{key}.open_rate", self.open_rates, Dimension.FREQUENCY
            ),
            *entries,
            self.highest_rate_entry(
                f"{key}.client_bandwidth", self.read_bandwidths, Dimension.BANDWIDTH
            ),
        ]

    def highest_rate_entry(
        self, key: str, rates: Mapping[int, Sequence[float]], dimension: Dimension
    ) -> FragmentEntry:
        """Return the entry of the highest median rate over the numbers of readers.

        Args:
            key: dotted key of a scenario.
            rates: of all rounds, by number of readers, in SI units.
            dimension: of the rates.
        """
        readers = best_readers(rates)
        note = self.highest_rate_note(readers, rates)
        return median_entry(key, rates[readers], dimension, note, rates)

    def open_curve_entry(self, key: str) -> FragmentEntry:
        """Return the entry of the median rate of opens (1/s) at each number of readers."""
        curve = {
            readers: readable(float(np.median(rounds)), Dimension.FREQUENCY)
            for readers, rounds in self.open_rates.items()
        }
        spans = {"over": measured_spans(self.open_rates)}
        return FragmentEntry(
            key, {"points": curve}, "open, read, close, by readers", spans
        )

    def highest_rate_note(
        self, readers: int, rates: Mapping[int, Sequence[float]]
    ) -> str:
        """Return the note on the highest rate, and why it may be a lower bound: it
        still rises by more than a tenth at the end, or one host was measured of many.

        Args:
            readers: the number of readers that reached it.
            rates: of all rounds, by number of readers.
        """
        note = f"the highest, with {readers} reader{'s' * (readers > 1)}"
        *_, previous_rate, last_rate = [
            float(np.median(rounds)) for rounds in rates.values()
        ]
        if last_rate > 1.1 * previous_rate:
            return f"{note}; a lower bound, since the rate still rises"
        return f"{note}; a lower bound, since one host read" if self.is_shared else note


def best_readers(rates: Mapping[int, Sequence[float]]) -> int:
    """Return the number of readers with the highest median rate."""
    return max(rates, key=lambda readers: float(np.median(rates[readers])))


def measured_spans(rates: Mapping[int, object]) -> dict[str, list[int]]:
    """Return the hosts and clients that the rates were measured over, as a scenario
    keeps them.
    """
    return {"hosts": [1, 1], "clients": [min(rates), max(rates)]}


def median_entry(
    key: str,
    values: Sequence[float],
    dimension: Dimension,
    note: str,
    rates: Mapping[int, object] | None = None,
) -> FragmentEntry:
    """Return the entry of the median of some values, with their range from three values
    on. The range holds the true median with probability 1 - 2^(1 - values).

    Args:
        key: dotted key of a scenario.
        values: one for each round, in SI units.
        dimension: of the values.
        note: what was measured.
        rates: by number of readers; None for one reader.
    """
    low, median, high = (
        readable(float(quantile), dimension)
        for quantile in np.quantile(values, [0, 0.5, 1])
    )
    interval: dict[str, object] = {}
    if len(values) > 2:
        confidence = round(1 - 2.0 ** (1 - len(values)), 4)
        interval = {"low": low, "high": high, "confidence": confidence}
    return FragmentEntry(
        key, median, note, interval | {"over": measured_spans(rates or {1: None})}
    )
