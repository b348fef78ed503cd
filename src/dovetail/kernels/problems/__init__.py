"""What a step computes, whichever kernel takes it: this convolution, this contraction, this attention."""
