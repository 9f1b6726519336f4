"""How far a prediction may be off: ranges of inputs, what the laws have missed elsewhere, and
chance."""
