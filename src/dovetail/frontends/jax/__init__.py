"""Functions of JAX: StableHLO modules, as JAX lowers and exports them, become graphs."""
