"""Explain for placements: every collective with its reason, its place, its price, and what would change it."""
