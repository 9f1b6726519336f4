"""Predict the accuracy that a shuffling strategy costs before anything is trained, and compare
remedies.
"""
