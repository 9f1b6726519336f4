"""What a scenario file is made of: records, quantities with units, curves, shipped files."""
