"""``python -m simshuffle``."""

from simshuffle.cli import entry_point

entry_point()
