"""The record of every kind of result, what its file holds beside it, and its JSON summary."""
