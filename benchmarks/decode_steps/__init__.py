"""What benchmarks/decoders.py runs in processes of its own: our tokens and those of peers."""
