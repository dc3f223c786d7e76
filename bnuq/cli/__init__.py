"""The command line: one file a command, each of which parses, calls one library function, and prints."""

from bnuq.cli.main import main

__all__ = ["main"]
