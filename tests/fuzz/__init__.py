"""Fuzzing of everything that reads input of others: `make fuzz CASES=100000 TARGETS="job progress"`.

A target reads bytes and may raise its documented errors only, each one printable sentence, within bounds of time and
memory. `mutation` changes inputs of a small corpus, `targets` lists who reads them, `run` counts and keeps what broke.
Inputs that once broke something are in corpus/, one folder per target, and are tried first by every run.
"""
