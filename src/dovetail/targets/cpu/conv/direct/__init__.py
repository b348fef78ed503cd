"""Direct convolution: patches are laid out per block, filters are multiplied from packed panels."""
