"""The effects of shuffling on accuracy, beside the time that it takes."""
