"""Fit parameters of scenarios to measurements, and compare predictions with
measurements.
"""
