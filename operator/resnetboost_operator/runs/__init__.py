"""The folder of a run: its files, its report, and what a later run of the folder may change."""
