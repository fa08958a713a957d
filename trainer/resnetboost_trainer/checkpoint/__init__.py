"""Checkpoints, snapshots and pretrained weights: saving, finding and loading them. Contains no training code."""
