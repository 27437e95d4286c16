"""Integrations: what other libraries' trainers and wrappers need; each is imported where asked."""
