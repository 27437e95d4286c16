"""The engine: units, worker threads, the communication thread and its driver."""
