"""Builds the distribution, installs it in fresh environments, and uses it there: `make wheel`."""
