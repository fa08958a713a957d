"""Faults: who failed first, what follows by rule or class, where the gang starts again, and which ranks are slow."""
