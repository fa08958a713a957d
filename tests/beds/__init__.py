"""Test beds: real programs that tests run against."""
