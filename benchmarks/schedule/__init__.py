"""Training steps whose communication overlaps with computing: ours beside DDP, and their ideal.

`command` is the front, and `plan` says what is compared. `run` brings hosts up and asks the rank on
each (`training`, whose trainers are in `trainers`) for one method after the other, several times
round; `records` is what is written down, and `targets` works out from that what was reached.
"""
