"""Layers of the networks, with fast operators on CPUs. Knows no network."""
