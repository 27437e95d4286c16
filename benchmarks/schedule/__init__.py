"""Training steps whose communication overlaps with computing: ours beside DDP, and their ideal.

`command` is the front, and `plan` says what is compared. `run` brings hosts up and asks the rank on
each (`training`) for one method after the other, several times round (`steps`); `records` is what
is written down, and `tables` shows it and works out what was reached.
"""
