"""The CPU, as passes see it."""
