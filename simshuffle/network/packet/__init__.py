"""The engine of the packet network: lossless InfiniBand with static routes, packet by packet.
Congestion trees and head-of-line blocking included.

The laws are in the docstring of `Packet`. ``kernel.py`` says how they are computed, and is where to
begin; ``core.py`` keeps its arrays, ``solve.py`` answers for explicit flows, and ``network.py``
runs beside a clock of the caller's. ``deadlock.py`` refuses routes on which buffers could lock up.
"""
