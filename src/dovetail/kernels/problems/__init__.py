"""What a step computes, whichever kernel takes it.

Products: `contraction`, with rows sorted into groups (`grouped`) and weights as they are stored (`stored_weights`:
`blocks`, `halves`); of integers: `bytes`. Windows: `convolution` with its axes (`geometry`), and as a product
(`windows`). `attention`. What becomes of sums: `epilogue`.
"""
