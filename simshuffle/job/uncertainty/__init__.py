"""Estimate how far a prediction may be off: by its inputs, by the errors of the laws,
and by chance.
"""
