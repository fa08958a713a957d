"""`resnetboost ranktable`: generates, merges, checks and shows rank tables as files."""
