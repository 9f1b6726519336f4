"""The parts of a scenario file: records, quantities with units, curves, shipped files."""
