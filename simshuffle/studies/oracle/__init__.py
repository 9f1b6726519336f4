"""Which way to divide training takes how long, and fits where."""
