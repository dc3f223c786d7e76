"""How a network follows a shift of its inputs: an evaluation under corruptions of rising severity."""
