"""Values, types, graphs: the words that every other room speaks."""
