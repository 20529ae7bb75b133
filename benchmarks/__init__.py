"""Benchmarks: `python -m benchmarks`. Ratios inside one run, for machines differ."""
