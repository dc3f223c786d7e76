"""The published experiments: protocol, record and report of each, run by `python -m experiments NAME`."""
