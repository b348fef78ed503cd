"""Convolutions: one folder for each variant, and the choice between them."""
