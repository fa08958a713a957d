"""Measures and analyzes the parts of a training step for `profile`. Keeps no weights."""
