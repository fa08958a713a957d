"""`python -m resnetboost_operator`: the command line where its script is not on the PATH; nothing else."""

from resnetboost_operator.terminal.cli import main

main(prog_name="resnetboost")
