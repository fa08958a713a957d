"""`resnetboost compare`: runs beside each other, as a table and as a picture."""
