"""simshuffle run: every run of a scenario's sweep."""
