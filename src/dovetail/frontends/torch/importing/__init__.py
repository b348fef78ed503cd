"""How calls of ATen operators become values: what a rule is, what it sees, and the import that applies it."""
