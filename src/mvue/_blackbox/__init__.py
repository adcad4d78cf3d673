"""Black-box simulators: running them in processes, with retries, into a folder that can be resumed.

A new way to run simulations belongs here.
"""
