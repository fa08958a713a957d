"""`resnetboost lr-find`: suggests a learning rate from a sweep over rates."""
