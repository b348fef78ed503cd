"""PyTorch modules and exported programs as graphs. `reading` alone uses torch; rules and importing know its names only."""
