"""Benchmarks: what compressors, exchanges and schedules cost, beside others and what is possible.

    python -m benchmarks kernels     compressors, beside the speed of this machine's memory
    python -m benchmarks exchange    collectives between hosts, beside the speed of the wire
    python -m benchmarks schedule    steps whose communication overlaps, beside their ideal
    python -m benchmarks steps       a whole step: computing, kernels, the wire, and what is left
    python -m benchmarks diloco      rounds of DiLoCo, ours and torchft's
    torchrun --nproc-per-node 2 -m benchmarks.integrity    what it costs to compare replicas
    torchrun --nproc-per-node 2 -m benchmarks.frames       what MACs cost
    torchrun --nproc-per-node 2 -m benchmarks.walk         which calls a step consists of

All stand on `harness`: its rows, targets, tables, ranks and its runner. Each of the first four has
a `command`, a `run` that measures, its `records`, and `tables`, whose `shown` says what is shown of
a measurement at the terminal; the fifth has all of these in one file. The documentation site draws
what is committed of them. `hosts` has testbeds, `timing` and `paired` the clocks.

To be run from the root of a clone. Unlike experiments they look into compressa, whose parts they
measure; nothing of compressa knows them.
"""
