"""Random graphs and damaged files, with a budget: `make fuzz`. What fails is shrunk and kept with a test."""
