"""Products of bytes: `product` offers and drives them, `tile` is the register tile, `job` what convolutions share."""
