"""`resnetboost profile`: shows where the time of a training step goes."""
