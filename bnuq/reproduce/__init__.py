"""Published experiments, run end to end and printed beside what was published."""
