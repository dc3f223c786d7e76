"""A copy of a checkpoint with the statistics of its training data."""
