"""Decides what should be: the plan and its policies, one file each. Pure: no requests, no processes, no clock."""
