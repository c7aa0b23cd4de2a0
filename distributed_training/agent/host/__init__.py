"""The agent: starts, watches and ends the ranks of one node; sent over SSH, never installed.

On a host this package is named ``host`` and imported from an archive, by any Python from 3.8 on:
so it imports itself relatively, and beside that only the standard library. Each module is loaded
when a call needs it, and ``typing`` never is: that saves every call some milliseconds.
"""
