"""Parallel file system."""

from __future__ import annotations

from simshuffle.spec import Bandwidth, Few, Frequency, Seconds, Sourced


class ParallelFileSystem(Sourced):
    """A file system that all hosts share.

    A file is opened first, which takes ``latency`` and one of ``open_rate`` operations a second of the servers, then its bytes come at
    a share of ``read_bandwidth`` through the network. ``links_per_switch`` links of ``link_bandwidth`` tie it to every topmost switch.
    """

    read_bandwidth: Bandwidth
    open_rate: Frequency
    latency: Seconds
    link_bandwidth: Bandwidth
    link_latency: Seconds
    links_per_switch: Few
