"""`python -m resnetboost_operator` runs the operator; the command line for people is `resnetboost`."""

from resnetboost_operator.kube.main import main

main(prog_name="python -m resnetboost_operator")
