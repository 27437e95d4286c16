"""Integrations: what other trainers and wrappers need; each module imports its own, where asked."""
