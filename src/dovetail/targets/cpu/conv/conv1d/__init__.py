"""Convolution along one axis."""
