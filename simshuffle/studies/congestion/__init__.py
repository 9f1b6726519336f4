"""The comparison of exchange patterns on the same bytes: all-to-all, permutations, shifts,
pairings; with a verdict.
"""
