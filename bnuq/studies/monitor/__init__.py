"""Whether unlabelled examples are still drawn like the reference."""
