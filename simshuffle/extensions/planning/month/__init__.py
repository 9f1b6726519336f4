"""Account for the time of a long training while hosts fail."""
