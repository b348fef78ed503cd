"""What front ends share: contents of small tensors, computed shapes, slices, windows, recurrences, quantisation."""
