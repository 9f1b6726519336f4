"""Predict the accuracy that a shuffle costs before anything is trained, and compare
remedies.
"""
