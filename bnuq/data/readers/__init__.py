"""One reader a format: a path in, `Contents` out, DataError for whatever cannot be read."""
