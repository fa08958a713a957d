"""Operators of our own in C++ for CPUs, built where a compiler is; everything works without them, more slowly."""
