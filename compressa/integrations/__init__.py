"""Integrations: one line for those who train by Accelerate, Lightning or Trainer.

Each module imports its framework, and is imported only where you ask for it.
"""
