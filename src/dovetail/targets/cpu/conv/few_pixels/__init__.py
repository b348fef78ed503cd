"""Convolutions whose result has few pixels: lanes run along filters."""
