"""The start: who takes part, on which cores, with which secret, link and transport."""
