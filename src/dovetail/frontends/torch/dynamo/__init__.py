"""Graphs that torch.compile captures: traced, divided into regions that have rules and calls that torch runs."""
