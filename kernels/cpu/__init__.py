"""Kernels for NumPy arrays, compiled by numba; imported only when one of them is called.

Every module has the functions of its namesake in :mod:`compressa.kernels`, with the same signatures
and the same bits. They are described there, and their arguments were checked there.
"""
