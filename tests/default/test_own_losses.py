"""The default network is trained by any loss."""

import numpy as np

import mvue
from helpers.hasty import HASTY


def test_default_network_is_trained_by_losses_of_ones_own(line, key):
    """A plain function, and one with a λ that grows: the network is that of the recipe."""

    def absolute(estimates, draw, progress):
        return abs(estimates - draw.y[:, None, :]).mean()

    growing = mvue.bce(mvue.losses.geometric_schedule(20.0, 100.0, begin=0.5))
    for loss, words in ((absolute, "absolute"), (growing, "λ from 20 to 100")):
        fit = mvue.fit(line, loss=loss, key=key, steps=2, recipe=HASTY)
        assert words in fit.settings["loss"]
        assert fit(np.zeros(2)).shape == (2,)
