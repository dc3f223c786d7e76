"""The record of every kind of result, the further contents of its file, and its JSON summary."""
