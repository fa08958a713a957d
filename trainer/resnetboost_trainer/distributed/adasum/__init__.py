"""Adasum: adaptive summation of gradients.

Maleki et al. 2021, "Scaling Distributed Training with Adaptive Summation".
"""
