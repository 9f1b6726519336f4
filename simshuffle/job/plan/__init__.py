"""What every epoch will do, as arrays: no clock, no network."""
