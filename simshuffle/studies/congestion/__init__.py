"""The comparison of exchange patterns on the same bytes, with a verdict."""
