"""How uncertainty depends on the mini-batch size, and which size the ELBO recommends."""
