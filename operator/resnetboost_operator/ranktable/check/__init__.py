"""Checks rank tables as HCCL's parsers do, with a rule for each error. Writes no table."""
