"""The version, for everybody to import."""

__version__ = "0.1.0"
