"""Results: the finished record of a run, its file, and its summary. Nothing here needs torch."""
