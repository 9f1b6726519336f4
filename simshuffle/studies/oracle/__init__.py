"""Predict how long each way to divide training takes, and where it fits into memory."""
