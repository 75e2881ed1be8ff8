"""Deployments on real machines: commands, keys, and a rehearsal on one."""
