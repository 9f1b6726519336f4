"""Data-optimised training: filter a training set by a network's features, retrain, and
report.
"""
