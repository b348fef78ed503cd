"""Depthwise convolution: each channel has its own filter."""
