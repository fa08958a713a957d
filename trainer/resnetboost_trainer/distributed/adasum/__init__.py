"""Adasum (Maleki et al. 2021, "Scaling Distributed Training with Adaptive Summation"), one concern to a file."""
