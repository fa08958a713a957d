"""Checks job files without a cluster, against the CRD's schema and rules."""
