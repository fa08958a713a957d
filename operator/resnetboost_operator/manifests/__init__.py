"""Builders of a job's Kubernetes objects as dicts, one file per kind. Pure functions of the job and the attempt."""
