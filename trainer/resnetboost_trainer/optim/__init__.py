"""Optimizers and what surrounds them: schedules, clipping, weight averages, loss scales. No data, no files."""
