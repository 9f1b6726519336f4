"""Odd inputs for every reader of the package: `python -m tests.fuzz` counts what becomes of them.

Each example is valid; each input is an example with a few things made odd, chosen by a seed and a
number alone. An input is accepted, or refused with a `SimshuffleError`; everything else is a fault.
"""
