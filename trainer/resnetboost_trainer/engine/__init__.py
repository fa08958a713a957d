"""The training loop and its parts: the compiled step, evaluation, compiled graphs on disk, signals."""
