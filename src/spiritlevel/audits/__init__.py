"""Measures against symmetries: audits of one network, comparisons of several."""
