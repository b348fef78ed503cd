"""1×1 convolution as a matrix product on packed panels of filters."""
