"""The command line: one file per command, which parses options, calls one library function, and prints."""

from bnuq.cli.main import main

__all__ = ["main"]
