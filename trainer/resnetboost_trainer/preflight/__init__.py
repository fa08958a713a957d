"""The preflight: a gang measures its devices and connections before it trains, and names the ranks that stand out.

`verdict` is arithmetic on what was measured, `workload` and `links` measure, `conductor` leads the gang through it.
"""
