"""The parts behind the scripts in ``experiments``: tasks, ranks, cells, records, report.

The scripts are run as files, so this folder is found beside them and is never installed.
Only the public API of ``compressa`` is used here.
"""
