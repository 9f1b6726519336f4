"""Explicit flows from a file, answered by any network model, and to a file: ``case.py`` reads and
writes, ``replay.py`` answers. The format is described in docs/replay.md."""
