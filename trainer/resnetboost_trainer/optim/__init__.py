"""Optimization algorithms, schedules, clipping, weight averages and loss scaling.

To add an algorithm, see registry.py. No data, no files.
"""
