"""Networks with learned noise: stochastic normalisations, and BatchNorm in variational inference."""
