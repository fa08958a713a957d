"""This machine as a cluster: runs pods as processes and executes plans on them. Decisions are in `planning`."""
