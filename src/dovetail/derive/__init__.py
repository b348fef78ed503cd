"""What follows from declarations: fuse, unfuse, missed fusions, rules, laws, catalogue."""
