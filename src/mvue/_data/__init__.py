"""Fixed data: measurements grouped by unit, in memory or in folders of shards.

Where nothing was repeated, smooth functions of theta tell a bias from noise. A new storage
format for simulated or measured data belongs here.
"""
