"""Checks of a cluster: `facts` reads everything once, a pure file per subject judges it, `registry` lists them."""
