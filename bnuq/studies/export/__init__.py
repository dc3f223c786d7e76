"""A network and its draws as one program, for other software."""
