"""What this host is measured to cost or to reach, as fragments that a scenario includes."""

from simshuffle.extensions.calibration.probe.samples import probe

__all__ = ["probe"]
