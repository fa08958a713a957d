"""THOR: block-diagonal natural gradient with Kronecker factors, refreshed by layer where their traces have moved."""
