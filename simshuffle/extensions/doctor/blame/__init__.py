"""Who makes the steps of a real training job slow."""
