"""The stages of a sweep over mini-batch sizes."""
