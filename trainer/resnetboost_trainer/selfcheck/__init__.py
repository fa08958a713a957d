"""Self-checks for `doctor`: a few steps of each algorithm on this machine's device, beside the same ones on its CPU.

`cases` says what is computed, `rank` computes it in processes that `gang` starts, `verdict` compares. None of it knows
checkpoints, data sets or the training loop: what fails here fails for its own reason.
"""
