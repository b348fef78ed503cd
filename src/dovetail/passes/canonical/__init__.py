"""Rewrites to one canonical form, by subject. Each is a small named rule that can be switched off and tested alone."""
