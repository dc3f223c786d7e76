"""Scores of predictions that other software made."""
