"""The version of simshuffle, for the code; pyproject.toml holds the same."""

__version__ = "0.3.0"
