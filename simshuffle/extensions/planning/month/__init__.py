"""Where the time of a long training goes while hosts fail."""
