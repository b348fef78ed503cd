"""The optimizer that decides: an e-graph holds the alternatives, and the cost of the whole graph chooses among them."""
