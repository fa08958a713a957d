"""Failure policies: what the plan does about a failure class (fail, restart, restart for free, roll back).

To add one: a file here and a line in registry.py.
"""
