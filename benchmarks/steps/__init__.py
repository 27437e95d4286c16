"""A training step: what each method takes, beside computing, its bytes on the wire and in memory.

`command` is the front, and `plan` says what is compared where. `run` brings hosts up and asks the
rank on each (`training`, of the models in `models`) for one method after the other, several times
round. `memory` says what kernels must move at least, and `messages` what a small message costs
beside a thread that keeps the interpreter. `records` is what is written down; `ratios` and
`targets` work out what was reached, and `tables` shows it.
"""
