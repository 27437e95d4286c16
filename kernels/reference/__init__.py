"""The specification: every kernel in plain NumPy.

Where the words of a public docstring and this code differ, this code is right. It is written to be
read and compared with, never to be fast, and is not used at run time.
"""
