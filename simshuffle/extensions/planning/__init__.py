"""Plan a training by simulation: its strategy, its file system and its cost."""
