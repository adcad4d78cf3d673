"""Fixed data: measurements grouped by unit, in memory or in folders of shards.

A new storage format for simulated or measured data belongs here.
"""
