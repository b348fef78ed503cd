"""The version and the name of the distribution, in the one place that everything else reads them from."""

from pathlib import Path


def _version() -> str:
    """Return the version that the build took from the tag; a checkout that pip did not install has none."""
    try:
        return Path(__file__).with_name("version.txt").read_text(encoding="ascii").strip()
    except OSError:
        return "0.1.0.dev0"


__version__ = _version()

DISTRIBUTION = "dovetail-ml"
"""What pip installs: the name of the import package is another project's there."""

__all__ = ["DISTRIBUTION", "__version__"]
