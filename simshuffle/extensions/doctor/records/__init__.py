"""Records of real trainings: what every batch of a loop took, from our own recorder or from the
traces of others."""
