"""Reports: data first, then text and JSON."""
