"""Data-loading policies compared: the eight of the NoPFS study, with its performance model."""
