"""Elastic gangs: on how many devices a job may run now, how it gets there, and whether there is room for more."""
