"""Is a batch of unlabelled inputs still from the reference's distribution? Features of a pass, the test, the stream."""
