"""Kernels: the loop language and the archetypes that write in it."""
