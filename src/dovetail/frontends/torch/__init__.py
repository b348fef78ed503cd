"""PyTorch modules and exported programs as graphs. `reading` alone uses torch; rules know the names of operators."""
