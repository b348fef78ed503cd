"""Winograd's convolutions, F(m×n, r×r).

`scheme` (transforms), `rounding` (how much a network may round), `patches`, `kernel`, `variant` (problems, tiles).
"""
