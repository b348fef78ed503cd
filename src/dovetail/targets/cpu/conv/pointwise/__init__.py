"""1×1 convolution that reads its input where it is."""
