"""Benchmarks: what compressors, exchanges and schedules cost, beside others and what is possible.

    python -m benchmarks kernels     compressors, beside the speed of this machine's memory
    python -m benchmarks exchange    collectives between hosts, beside the speed of the wire
    python -m benchmarks schedule    steps whose communication overlaps, beside their ideal
    torchrun --nproc-per-node 2 -m benchmarks.integrity    what it costs to compare replicas
    torchrun --nproc-per-node 2 -m benchmarks.frames       what it costs to check frames

All have one framework: `records` (rows below a header, in a file that can be brought up to date),
`targets` (verdicts on rows) and `runner` (settings, options, the run itself); `harness` has tables
and the ranks on hosts. Of the first three each has a `command`, a `run` that measures, `records`,
`targets` and `tables` of its own, and `page` writes docs/performance.md of what they leave. `hosts`
has testbeds, `timing` and `paired` the clocks.

To be run from the root of a clone. Unlike experiments they look into compressa, whose parts they
measure; nothing of compressa knows them.
"""
