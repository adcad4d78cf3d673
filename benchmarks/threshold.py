"""Bounds on the frequency of a complex tone of 10 samples, and maximum likelihood, against the SNR.

python benchmarks/threshold.py docs/assets/threshold.png
"""

import sys

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist

import mvue
from mvue._display.figures import draw_series, new_figure, share_legend

TIMES = np.arange(10.0) - 4.5  # about the middle, so that the phase tells nothing of the frequency
THETA = {"frequency": 0.25, "phase": 0.0}
GRID = np.linspace(0.02, 0.48, 2000)
REPEATS = 4000


def tone(decibel):
    """A tone of unknown frequency and phase in white noise."""
    amplitude = 10 ** (decibel / 20)

    def likelihood(theta):
        phase = 2 * jnp.pi * theta["frequency"] * TIMES + theta["phase"]
        signal = amplitude * jnp.concatenate([jnp.cos(phase), jnp.sin(phase)])
        return dist.Normal(signal, np.sqrt(0.5))

    prior = {"frequency": dist.Uniform(0.02, 0.48), "phase": dist.Uniform(-3.0, 3.0)}
    return mvue.Problem.from_likelihood(
        prior, likelihood, target=lambda theta: theta["frequency"][None], names=("frequency",)
    )


def squared_errors(problem):
    """Of maximum likelihood, the highest point of the periodogram."""
    x = np.asarray(
        jax.vmap(problem.simulate, in_axes=(0, None))(jr.split(jr.key(0), REPEATS), THETA)
    )
    x = x[:, : len(TIMES)] + 1j * x[:, len(TIMES) :]
    spectrum = np.abs(x @ np.exp(-2j * np.pi * TIMES[:, None] * GRID))
    return (GRID[spectrum.argmax(axis=1)] - THETA["frequency"]) ** 2


def main() -> None:
    """Draw the figure."""
    decibels = np.arange(-10.0, 15.0, 3.0)
    problems = [tone(decibel) for decibel in decibels]
    errors = [squared_errors(problem) for problem in problems]
    crb = np.array([mvue.crb(problem, THETA).matrix[0, 0] for problem in problems])
    barankin = np.array([mvue.barankin(problem, THETA).matrix[0, 0] for problem in problems])
    figure = new_figure(5.6, 3.6)
    ax = figure.subplots()
    mse = np.mean(errors, axis=1)
    draw_series(ax, decibels, mse, np.std(errors, axis=1) / np.sqrt(REPEATS), "MLE, MSE", 0)
    draw_series(ax, decibels, barankin, 0 * barankin, "Barankin bound", 1)
    ax.plot(decibels, crb, "k--", linewidth=1.2, label="CRB")
    ax.set_yscale("log")
    ax.set_xlabel("SNR of one sample [dB]")
    ax.set_title("squared error of a frequency")
    share_legend(figure, [ax])
    figure.savefig(sys.argv[1])
    for row in zip(decibels, mse / crb, barankin / crb, strict=True):
        print("{:5.0f} dB  MSE/CRB {:8.3f}  Barankin/CRB {:8.3f}".format(*row))


if __name__ == "__main__":
    main()
