"""The report page: results as one file for a browser."""
