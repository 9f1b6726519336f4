"""The report page: results of any study as one file that a browser shows without a network."""
