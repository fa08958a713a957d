"""`python -m resnetboost_operator` runs the operator; the command line for people is `resnetboost`."""

from resnetboost_operator.controller.main import main

main(prog_name="python -m resnetboost_operator")
