"""Measuring: what the engine counts and times, for plans, traces, statistics and profiles."""
