"""Commands that the trainer executes in a process of its own, since the operator may be installed without it.

Each has a module in resnetboost_trainer/cli, listed in commands.py.
"""
