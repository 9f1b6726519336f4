"""Trainings drawn by seed, with the truth about why they wait, to judge ``simshuffle doctor``.

Nothing here reads the diagnosis: the truth is what was put in, and what a mended script gains.
"""
