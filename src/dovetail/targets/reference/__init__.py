"""The reference target: every step runs as NumPy, and is the judge of every other target."""
