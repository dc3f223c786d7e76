"""The stochastic network: its sites, the batch statistics ω, dropout masks, and the samples drawn with them."""
