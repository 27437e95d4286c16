"""Links: what a user's own network is like, fitted to what its ranks measure.

`compressa link` is the front. `measure` runs on every rank, `fit` works out the figures of the
cost model, `operations` has what is timed for them, and `chain` times it.
"""
