"""The comparison of exchange patterns on the same bytes: all-to-all, permutations, shifts,
pairings; with a verdict.

`compare` runs it, `verdict` and `figures` read its tables alone, `folder` keeps them, `text` prints
them.
"""
