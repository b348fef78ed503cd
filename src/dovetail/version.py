"""The version and the name of the distribution, in the one place that everything else reads them from."""

__version__ = "0.1.0"

DISTRIBUTION = "dovetail-ml"
"""What pip installs: the name of the import package is another project's there."""

__all__ = ["DISTRIBUTION", "__version__"]
