"""Failure policies: how the plan answers a failure class. A new one is a file here and a line in registry.py."""
