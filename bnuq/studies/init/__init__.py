"""A run file for a checkpoint, with what could be found out."""
