"""Training steps of four models, as each peer writes them: the same weights, batches and AdamW."""
