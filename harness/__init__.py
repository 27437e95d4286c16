"""What benchmarks and experiments share: one framework of rows, targets, tables, ranks and runs.

`records` are rows and the files that hold them, `tables` shows them at a terminal and on pages,
with verdicts on targets, and `runner` is what every benchmark does at the command line. `start`
starts ranks on hosts and `ranks` is the driver's end of the line to them; `rank` is what runs
there, and `wire` its end.

Like them, it is no part of the wheel, and nothing of compressa knows it.
"""
