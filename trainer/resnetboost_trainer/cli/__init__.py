"""The commands beside training: `python -m resnetboost_trainer COMMAND`, one module each with a `main`."""
