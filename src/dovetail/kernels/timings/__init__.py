"""What estimates of GPU kernels know of a card: `record`, and a file of figures for each architecture."""
