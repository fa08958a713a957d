"""Measures and analyzes the parts of a training step for `profile`. Saves no weights."""
