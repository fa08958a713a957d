"""This machine as a cluster: pods as processes, and the passes over them; nothing here decides what should run."""
