"""The story of each command in one screen."""
