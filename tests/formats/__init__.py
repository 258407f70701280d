"""Formats of other stores."""
