"""`check`: could the simulator have made these measurements, at the values estimated from them?

A further way to compare data with simulations belongs here.
"""
