"""Kernels for NumPy arrays, compiled by numba; imported only when one of them is called.

Every module has the functions of its namesake in :mod:`compressa.kernels.reference`, with the same
signatures and the same bits. Arguments were checked by the public function that calls them.
"""
