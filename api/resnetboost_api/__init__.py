"""The schema of a ResNetBoostJob, shared by operator and trainer; imports neither, nor Kubernetes, nor MindSpore.

To add a field, add it to its struct: a type with a range (every list, map and text that a rule looks at needs an upper
bound, because the API server prices rules by their worst case), a default or none, and below it a string that says
meaning, unit and what happens. A pattern comes with a title, the words that `resnetboost validate` puts after "use".
A rule between fields of a struct stands in its `RULES`, one between parts or stages of a job in jobrules.py.
Then run `make crd`. A default never changes within a version of the API: config files leave out what is at its default.
"""

__version__ = "0.2.0"
