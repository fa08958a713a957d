"""Builders of the Kubernetes objects of a job, as dicts, from the job alone. No requests, no clock."""
