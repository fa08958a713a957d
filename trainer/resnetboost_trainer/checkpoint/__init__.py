"""Saves and finds what a gang resumes from: checkpoints, snapshots, weights. Trains nothing."""
