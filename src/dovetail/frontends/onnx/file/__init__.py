"""The file: its bytes are checked, read and skimmed; its tensors and types become arrays and dtypes."""
