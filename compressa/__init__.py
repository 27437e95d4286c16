"""Compressa."""
