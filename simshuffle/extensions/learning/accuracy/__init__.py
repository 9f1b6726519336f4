"""What a shuffling strategy costs in accuracy, before anything is trained, and what helps."""
