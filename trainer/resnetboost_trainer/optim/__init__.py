"""Optimization algorithms, schedules, clipping, weight averages and loss scaling.

To add an algorithm, see CONTRIBUTING.md; a schedule, see schedule.py. No data, no files.
"""
