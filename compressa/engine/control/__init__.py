"""The control channel: small messages between all ranks, and one verdict when something fails."""
