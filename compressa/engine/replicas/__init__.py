"""Replicas: parameters brought to all ranks, and compared between them."""
