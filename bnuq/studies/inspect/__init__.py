"""Where a network is stochastic, how its statistics were made, and which pipeline it was trained with."""
