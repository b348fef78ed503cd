"""What is read with torch itself: modules are exported, exported programs become plain data, tensors become arrays."""
