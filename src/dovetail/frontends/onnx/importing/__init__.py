"""The import: nodes, rules by signature, functions, attributes, and the walk that makes a graph of them."""
