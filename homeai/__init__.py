"""homeai: one resident language model for a whole home."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("homeai")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
