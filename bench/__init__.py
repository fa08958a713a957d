"""Benchmarks: each figure is a ratio against a named baseline, measured side by side in one run, with its spread."""
