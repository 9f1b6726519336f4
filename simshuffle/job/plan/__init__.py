"""Plans of every epoch, as arrays: no clock, no network."""
