"""The installed version."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("jaxgnn")
except PackageNotFoundError:  # a checkout that was never installed
    __version__ = "0+unknown"
