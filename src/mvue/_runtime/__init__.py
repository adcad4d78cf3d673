"""The machine: compilation, devices, processes, threads, memory, signals and progress.

Nothing here knows what an estimator is.
"""
