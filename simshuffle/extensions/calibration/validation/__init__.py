"""Compare predictions with measurements: every published number in ``validation/``."""
