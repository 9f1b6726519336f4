"""The records of a simulation: tables, report, folders, and the look of figures."""
