"""The run folder: its files, its report, and what a second run in the same folder may change."""
