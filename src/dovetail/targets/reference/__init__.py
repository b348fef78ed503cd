"""The judge of every other target: plain NumPy, in the graph's own dtypes or in float64."""
