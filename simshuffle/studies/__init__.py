"""The studies: a folder each, found by its module ``verb``
(`simshuffle.study.registry`).
"""
