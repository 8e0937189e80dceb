"""Thin doors to other frameworks, imported on demand."""
