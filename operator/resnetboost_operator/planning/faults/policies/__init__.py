"""Failure policies: what the plan does about a failure, by a rule's or a failure class' action.

To add one: a file here and a line in registry.py.
"""
