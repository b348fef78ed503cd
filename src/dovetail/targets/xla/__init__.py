"""XLA as a target: plans as traced JAX functions, on one device or on a mesh of them."""
