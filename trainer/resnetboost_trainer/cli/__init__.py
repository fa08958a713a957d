"""Commands other than training: `python -m resnetboost_trainer COMMAND`, one module with a `main` each."""
