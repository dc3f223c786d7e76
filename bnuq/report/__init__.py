"""Reports: finished records drawn on a stream that is handed in. Nothing here needs torch."""
