"""From a graph that a target runs to a plan: when each kernel runs, and where its results are stored."""
