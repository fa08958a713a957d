"""Kueue: the Workload of a job, the patches of it, and what its admission puts on the pods."""
