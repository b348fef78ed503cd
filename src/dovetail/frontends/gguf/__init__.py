"""Language models in GGUF files."""
