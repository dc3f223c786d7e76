"""Records at rest: one codec that writes and reads every kind of result. Nothing here needs torch."""
