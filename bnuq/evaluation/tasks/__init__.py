"""How each task scores samples: a streaming reduction, and its estimates."""
