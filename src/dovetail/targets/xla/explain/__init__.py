"""Explain for placements: every collective with its reason, its place, its price, and what would change it.

Start at `explained`. A graph becomes StableHLO (`lowered`); Shardy's passes run in a `child` process (`shardy`), or XLA
compiles it (`compiled`). Each `collective` is priced by the links that `calibration` measured (`rings`). `auto` finds
the placement with the lowest price.
"""
