"""`resnetboost status`: shows jobs of a cluster and runs of this machine. Changes nothing."""
