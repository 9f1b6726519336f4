"""Storage tiers, one file each."""

from __future__ import annotations

from simshuffle.storage.local_ssd import LocalSsd
from simshuffle.storage.memory import Memory
from simshuffle.storage.object_store import ObjectStore
from simshuffle.storage.parallel_file_system import ParallelFileSystem

__all__ = ["LocalSsd", "Memory", "ObjectStore", "ParallelFileSystem"]
