"""Failure policies: what the plan does about a failure, by a rule's or a failure class' action.

To add one: a file here, a line in registry.py and its name in `Action` of resnetboost_api/failures.py.
"""
