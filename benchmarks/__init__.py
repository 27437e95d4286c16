"""Benchmarks: what compressors, exchanges and schedules cost, beside others and what is possible.

    python -m benchmarks kernels     compressors, beside the speed of this machine's memory
    python -m benchmarks exchange    collectives between hosts, beside the speed of the wire
    python -m benchmarks schedule    steps whose communication overlaps, beside their ideal
    python -m benchmarks steps       a whole step: computing, kernels, the wire, and what is left
    python -m benchmarks diloco      rounds of DiLoCo, ours and torchft's
    python -m benchmarks fsdp        FSDP2, by int8 and in float32
    python -m benchmarks hogwild     how updates of one memory without locks scale
    python -m benchmarks sparse-sums what oktopk, gtopk and topk send
    python -m benchmarks integrity   what it costs to compare replicas
    python -m benchmarks frames      what MACs cost
    python -m benchmarks walk        which calls a step consists of

All stand on `harness`: its rows, targets, tables, ranks and its runner. Each of the first four has
a `command`, a `run` that measures, its `records`, and `tables`, whose `shown` says what is shown of
a measurement at the terminal; the others have all of these in one file, and what ranks do in
another where that is long. The documentation site draws what is committed of them. `hosts` has
testbeds, `timing` and `paired` the clocks, and `perceptrons` ranks whose steps `paired` compares.

To be run from the root of a clone. Unlike experiments they look into compressa, whose parts they
measure; nothing of compressa knows them.
"""
