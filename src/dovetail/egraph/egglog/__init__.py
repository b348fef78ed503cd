"""egglog as a second engine: the same rules as text, facts as tables."""
