"""Observed pods, nodes and failures, read from their Kubernetes form. Decisions belong to planning."""
