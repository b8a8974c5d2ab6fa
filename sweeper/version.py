"""The version of the package, which no room asks the package's face for."""

__version__ = "0.1.0"
