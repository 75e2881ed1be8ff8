"""Secure aggregation: the sum of integer vectors, and nothing of any single one."""
