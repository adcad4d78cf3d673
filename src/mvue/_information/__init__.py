"""What simulations alone tell about theta: the information in statistics, and estimated bounds.

Another way to learn information, or a bound, without a likelihood belongs here.
"""
