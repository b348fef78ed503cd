"""Convolution with fewer results than taps: pixels are summed, filters are in lanes."""
