"""Measures and analyzes the parts of a training step for `profile`. Discards the trained weights."""
