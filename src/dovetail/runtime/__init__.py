"""Programs: compiled plans with their parameters, ready to run."""
