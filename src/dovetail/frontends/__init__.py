"""Models from elsewhere as graphs."""
