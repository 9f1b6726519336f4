"""What shuffling does to accuracy, beside the time that it takes."""
