"""Each command, as one short script."""
