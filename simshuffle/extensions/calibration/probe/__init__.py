"""Measure what samples and storage cost this host, as fragments that a scenario
includes.
"""

from simshuffle.extensions.calibration.probe.samples import probe

__all__ = ["probe"]
