"""What a simulation leaves behind: tables, report, folders, the look of figures."""
