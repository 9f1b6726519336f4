"""What to do: strategies, file system and cost of a training, as simulated."""
