"""The stages of `bnuq inspect`."""
