"""`resnetboost sweep`: tries values of a job's fields, on this machine or on a cluster, and keeps the best."""
