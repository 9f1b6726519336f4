"""Time to accuracy: what a training reached after each epoch, joined with the simulated time of its
epochs. No torch."""
