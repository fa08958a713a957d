"""Checkpoints, snapshots and weights: saving, finding and restoring them. Trains nothing."""
