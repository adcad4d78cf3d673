"""The compiled program of training: simulate, estimate, update and validate.

Everything here is traced once per fit. Random numbers depend on the key of the run and the number
of the step alone.
"""

import copy
import math
from collections.abc import Callable, Hashable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._core.problem import Draw
from .._core.types import Estimator, Key
from .._recipe.efficient import EfficientError
from .._recipe.excess import ExcessSums
from .._recipe.scoring import Places
from .._recipe.settings import ScheduleSettings
from .._runtime.devices import mapped
from ..losses._functions import unit_squared_bias
from ..losses._loss import Loss
from ..losses._objectives import BiasConstrained, OfTheta
from ..nn._frozen import trainable
from ..nn._staged import OnBaseline, finish, prepare
from .batches import BatchSource, SimulatedBatches
from .control_variate import Anchor, BiasSums, Control

BASELINE_UNITS = 4096  # on which a baseline is checked

Keep = Literal["average", "best", "last"]


class Sums(NamedTuple):
    """Sums over the steps since the last record."""

    loss: Float[Array, ""]
    mse: Float[Array, ""]
    squared_bias: Float[Array, ""]
    steps: Float[Array, ""]

    @classmethod
    def zero(cls) -> "Sums":
        return cls(*(jnp.zeros(()),) * 4)


class Arrays(NamedTuple):
    """All arrays of a network: passed to compiled functions, never baked into them."""

    params: PyTree
    constants: PyTree


class State(NamedTuple):
    """Everything the next step needs, and what the end of training chooses from."""

    step: Int[Array, ""]
    params: PyTree
    average: PyTree
    best: PyTree
    opt_state: PyTree
    sums: Sums
    nonfinite: Int[Array, ""]
    diverged: Bool[Array, ""]
    anchor: Anchor | None
    excess: Float[Array, "f d"] | None
    """Of the errors of stages over the expected ones, by which weights are lowered."""
    loss_unit: Float[Array, ""]
    """What the default optimizer measures the loss in, so that the units of y do not matter."""


class Program:
    """The functions of one training run that are compiled."""

    def __init__(
        self,
        source: BatchSource,
        network: Estimator,
        loss: Loss,
        steps: int,
        optimizer: Any,
        keep: Keep,
        control: Control | None = None,
        same_as: Hashable | None = None,
        settings: ScheduleSettings | None = None,
        places: Places | None = None,
        efficient_error: EfficientError | None = None,
    ) -> None:
        self.settings = settings or ScheduleSettings()
        self.places, self.efficient_error = places, efficient_error
        self.source, self.loss, self.control = source, loss, control
        self.same_as = same_as
        self.steps, self.keep, self.d = steps, keep, source.d
        params, rest = eqx.partition(network, trainable(network))
        constants, self.static = eqx.partition(rest, eqx.is_array)
        self.arrays = Arrays(params, constants)
        if not jax.tree.leaves(params):
            raise ValueError(
                "network has no trainable arrays: give an Equinox module whose leaves are "
                "floating-point JAX arrays"
            )
        # The first loss of stages, before anything is learned, is no measure of what follows.
        self.first_penalised = 0
        if places is not None:
            self.first_penalised = min(steps, math.ceil(self.settings.robust * steps))
        own_optimizer = isinstance(optimizer, optax.GradientTransformation)
        self.measures_loss = not own_optimizer and places is None
        if not isinstance(optimizer, optax.GradientTransformation):
            usual = self.settings.learning_rate if places is None else self.settings.scoring_rate
            peak = usual if optimizer is None else float(optimizer)
            optimizer = default_optimizer(steps, peak, self.settings, staged=places is not None)
        self.optimizer = optax.with_extra_args_support(optimizer)

    def initial_state(self) -> State:
        # Copies, so that the compiled program never sees one buffer under two names.
        params, average, best, anchor = (
            jax.tree.map(jnp.array, self.arrays.params) for _ in range(4)
        )
        return State(
            step=jnp.asarray(0),
            params=params,
            average=average,
            best=best,
            opt_state=jax.tree.map(jnp.asarray, self.optimizer.init(params)),
            sums=Sums.zero(),
            nonfinite=jnp.asarray(0),
            diverged=jnp.asarray(False),
            anchor=None if self.control is None else self.control.first(anchor, self.d),
            excess=None if self.places is None else self._no_excess(),
            loss_unit=jnp.ones(()),
        )

    def _no_excess(self) -> Array:
        assert self.places is not None
        return jnp.zeros((self.places.excess.size(len(self.places.unit)), self.d))

    def candidate(self, state: State) -> PyTree:
        """The weights that training would return if it ended now."""
        return state.average if self.keep == "average" else state.params

    def estimator(self, arrays: Arrays) -> Estimator:
        """The network with these arrays."""
        return eqx.combine(*arrays, self.static)

    def estimate(self, arrays: Arrays, x: PyTree) -> Float[Array, "n m d"]:
        return self.finish(arrays, self.prepare(arrays, x))

    def prepare(self, arrays: Arrays, x: PyTree) -> PyTree:
        """What the network makes of a batch before anything that is trained, (N, M, ...)."""
        return self._map(prepare, arrays, x)

    def finish(self, arrays: Arrays, prepared: PyTree) -> Float[Array, "n m d"]:
        """The estimates from a prepared batch."""
        return self._map(finish, arrays, prepared)

    def _map(self, stage: Callable[[Any, PyTree], PyTree], arrays: Arrays, batch: PyTree) -> PyTree:
        """A stage of the network, applied to all of a batch (N, M, ...)."""

        def apply(arrays: Arrays, flat: PyTree) -> PyTree:
            network = self.estimator(arrays)
            return jax.vmap(lambda one: stage(network, one))(flat)

        n, m = jax.tree.leaves(batch)[0].shape[:2]
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch)
        made = mapped(apply, self.source.mesh, arrays, flat)
        return jax.tree.map(lambda leaf: leaf.reshape(n, m, *leaf.shape[1:]), made)

    def on_one_device(self) -> "Program":
        """The same, not divided."""
        program = copy.copy(self)
        program.source = copy.copy(self.source)
        program.source.mesh = None
        return program

    def noise(
        self,
        anchor: Anchor | None,
        draw: Draw,
        prepared: PyTree,
        efficient: Array | None,
        constants: PyTree,
    ) -> Array | None:
        """Noise of the estimates that is known besides the efficient errors; None if none is."""
        if self.control is None or anchor is None:
            return None
        estimates = self.finish(Arrays(anchor.params, constants), prepared)
        baseline = _baseline(prepared)
        if efficient is not None:
            estimates = estimates - efficient
            baseline = None if baseline is None else baseline - efficient
        return self.control.noise(anchor, estimates, draw, baseline)

    def efficient_errors(self, draw: Draw) -> Float[Array, "n m d"] | None:
        """The errors that an efficient estimator would make of a batch; None if unknown."""
        error = self.efficient_error
        if error is None:
            return None
        of_units = jax.vmap(jax.vmap(error, in_axes=(None, 0)))
        found = mapped(
            lambda _, units: of_units(*units), self.source.mesh, (), (draw.theta, draw.x)
        )
        # What is not finite tells nothing of the error.
        return jnp.where(jnp.isfinite(found).all(axis=2, keepdims=True), found, 0.0)

    def baseline_bias(self, arrays: Arrays, key: Key) -> tuple[Array, Array]:
        """Squared bias of the baseline over its variance, (d,), with standard errors."""
        assert isinstance(self.source, SimulatedBatches)
        draw, _ = self.source.draw_units(key, BASELINE_UNITS)
        baseline = _baseline(self.prepare(arrays, draw.x))
        assert baseline is not None
        errors = baseline - draw.y[:, None, :]
        variance = jnp.var(errors, axis=1, ddof=1).mean(axis=0)
        shown = unit_squared_bias(errors, "unbiased") / variance[None, :]
        return shown.mean(axis=0), shown.std(axis=0) / jnp.sqrt(BASELINE_UNITS)

    def measure(self, params: PyTree, key: Key, constants: PyTree, pool: PyTree) -> BiasSums:
        """What an anchor with these weights is made from."""
        control, arrays = self.control, Arrays(params, constants)
        assert control is not None

        def batch(i: Array) -> BiasSums:
            draw, _ = self.source.draw(jr.fold_in(key, i), pool)
            prepared = self.prepare(arrays, draw.x)
            reference = _baseline(prepared)
            if reference is None:
                efficient = self.efficient_errors(draw)
                reference = draw.y[:, None, :] + (0.0 if efficient is None else efficient)
            return control.sums(self.finish(arrays, prepared) - reference, draw)

        def add(i: Array, sums: BiasSums) -> BiasSums:
            return jax.tree.map(jnp.add, sums, batch(i))

        penalised = self.steps - self.first_penalised
        batches = max(1, round(control.features.settings.share * penalised))
        return jax.lax.fori_loop(0, batches, add, control.zero(self.d))

    def measure_excess(self, params: PyTree, key: Key, constants: PyTree) -> ExcessSums:
        """What tells where the errors of these weights are larger than expected."""
        source, places, loss = self.source, self.places, self.loss
        assert places is not None
        assert isinstance(source, SimulatedBatches)
        assert isinstance(loss, BiasConstrained)
        arrays = Arrays(params, constants)

        def batch(i: Array) -> ExcessSums:
            draw, _ = source.draw(jr.fold_in(key, i), ())
            estimates = self.finish(arrays, self.prepare(arrays, draw.x))
            unit = jnp.sqrt(loss.weights(draw))[:, None, :]
            at = jax.vmap(places.of)(draw.theta, draw.y)
            return places.excess.sums(at, (estimates - draw.y[:, None, :]) * unit)

        def add(i: Array, sums: ExcessSums) -> ExcessSums:
            return jax.tree.map(jnp.add, sums, batch(i))

        size = places.excess.size(len(places.unit))
        zero = ExcessSums(jnp.zeros((size, size)), jnp.zeros((size, self.d)))
        return jax.lax.fori_loop(0, self.settings.excess_batches, add, zero)

    @property
    def lowers_weights(self) -> bool:
        """Whether weights are lowered where errors are larger than expected."""
        of_survey = isinstance(self.loss, BiasConstrained) and isinstance(self.loss.weight, OfTheta)
        return self.places is not None and of_survey

    def loss_of(self, state: State) -> Loss:
        """The loss with the weights that the errors seen so far call for."""
        loss, places, source = self.loss, self.places, self.source
        if not self.lowers_weights:
            return loss
        assert places is not None
        assert state.excess is not None
        assert isinstance(source, SimulatedBatches)
        assert isinstance(loss, BiasConstrained)
        assert isinstance(loss.weight, OfTheta)
        expected, coefficients = loss.weight.weight, state.excess

        def weight(theta: Any) -> Array:
            at = places.of(theta, source.problem.y_of(theta))
            return expected(theta) * jnp.exp(-places.excess.of(coefficients, at))

        return loss.weighted_by(weight)

    def run(
        self, state: State, count: Int[Array, ""], key: Key, constants: PyTree, pool: PyTree
    ) -> State:
        """At most `count` steps; ends early when training diverges."""

        def wanted(carry: tuple[Array, State]) -> Array:
            done, state = carry
            return (done < count) & ~state.diverged

        def body(carry: tuple[Array, State]) -> tuple[Array, State]:
            done, state = carry
            return done + 1, self.step(state, jr.fold_in(key, state.step), constants, pool)

        return jax.lax.while_loop(wanted, body, (jnp.asarray(0), state))[1]

    def step(self, state: State, key: Key, constants: PyTree, pool: PyTree) -> State:
        draw, bad = self.source.draw(key, pool)
        prepared = self.prepare(Arrays(state.params, constants), draw.x)
        if self.places is None:
            value, estimates, grads = self.gradient(state, draw, prepared, constants)
        else:
            # While the loss is robust, neither the penalty nor its control variate is needed.
            branches = self.gradient, self.robust_gradient
            penalised = state.step >= self.first_penalised
            value, estimates, grads = jax.lax.cond(
                penalised, *branches, state, draw, prepared, constants
            )
        updates, opt_state = self.optimizer.update(
            grads, state.opt_state, state.params, value=value
        )
        params = optax.apply_updates(state.params, updates)
        share = jnp.maximum(1 / (state.step + 1), 1 / (1 + self.settings.averaged * self.steps))
        average = optax.incremental_update(params, state.average, share)
        mse, bias2 = self.source.moments(estimates, draw)
        sums = Sums(*map(jnp.add, state.sums, (value, mse, bias2, jnp.ones(()))))
        after = state._replace(
            step=state.step + 1,
            params=params,
            average=average,
            opt_state=opt_state,
            sums=sums,
            nonfinite=state.nonfinite + bad,
        )
        good = jnp.isfinite(value) & _all_finite(params)
        kept = jax.tree.map(lambda new, old: jnp.where(good, new, old), after, state)
        # A batch without a single finite unknown is skipped; training has not diverged.
        empty = bad == self.source.batch_size
        skipped = state._replace(step=after.step, nonfinite=after.nonfinite)
        return jax.tree.map(
            lambda skip, keep: jnp.where(empty, skip, keep), skipped, kept._replace(diverged=~good)
        )

    def gradient(
        self, state: State, draw: Draw, prepared: PyTree, constants: PyTree
    ) -> tuple[Array, Array, PyTree]:
        """The loss of a batch, its estimates, and the gradient that training follows."""
        progress = state.step / self.steps
        efficient = self.efficient_errors(draw)
        noise = self.noise(state.anchor, draw, prepared, efficient, constants)
        loss = self.loss_of(state)

        def objective(params: PyTree) -> tuple[Array, tuple[Array, Array]]:
            arrays, robust = Arrays(params, constants), None
            if self.places is None:
                estimates = self.finish(arrays, prepared)
            else:
                estimates, robust = self.staged(arrays, prepared, draw, efficient, progress)
            # Out of the error, too: what is left of its gradient is that of the excess.
            rest = estimates if efficient is None else estimates - efficient
            known = {}
            if noise is not None and self.control is not None:
                known["control_variate"] = self.control.matched(noise, rest, draw)
            value = self.source.evaluate(loss, rest, draw, progress, **known)
            wanted = value / state.loss_unit
            if robust is not None:
                share = robust_share(progress, self.settings)
                # Adam takes a sudden growth of the gradient for a reason to leap.
                if isinstance(self.loss, BiasConstrained):
                    wanted /= 1 + self.loss.bias_weight_at(progress)
                wanted = (1 - share) * wanted + share * robust
            return wanted, (value, estimates)

        (_, found), grads = jax.value_and_grad(objective, has_aux=True)(state.params)
        return *found, grads

    def robust_gradient(
        self, state: State, draw: Draw, prepared: PyTree, constants: PyTree
    ) -> tuple[Array, Array, PyTree]:
        """The same while the loss is robust."""
        progress = state.step / self.steps
        efficient = self.efficient_errors(draw)

        def objective(params: PyTree) -> tuple[Array, Array]:
            arrays = Arrays(params, constants)
            estimates, robust = self.staged(arrays, prepared, draw, efficient, progress)
            return robust, estimates

        (robust, estimates), grads = jax.value_and_grad(objective, has_aux=True)(state.params)
        return robust, estimates, grads

    def staged(
        self,
        arrays: Arrays,
        prepared: PyTree,
        draw: Draw,
        efficient: Array | None,
        progress: Array,
    ) -> tuple[Float[Array, "n m d"], Array]:
        """Estimates of a network with stages, and the robust loss of all its states.

        That is c² log(1 + error² / c²), of nuisance parameters, too.
        """
        assert self.places is not None
        states = self._map(lambda network, one: network.states(one), arrays, prepared)
        estimates = self._map(
            lambda network, one: network.in_units(one), arrays, states[:, :, -1, :]
        )
        wanted = jax.vmap(self.places.of)(draw.theta, draw.y)[:, None, None, :]
        unit = jnp.asarray(self.places.unit)[None, None, None, :]
        scale = robust_scale(progress, self.settings)
        rest = (states - wanted) / unit
        if efficient is not None and isinstance(self.loss, BiasConstrained):
            known = efficient * jnp.sqrt(self.loss.weights(draw))[:, None, :]
            rest = rest.at[..., : self.d].add(-known[:, :, None, :])
        errors = scale**2 * jnp.log1p((rest / scale) ** 2)
        mean = jnp.mean(errors, axis=(0, 1, 2))
        value = jnp.mean(mean[: self.d])
        if mean.shape[0] > self.d:
            value += self.settings.nuisance_weight * jnp.mean(mean[self.d :])
        return estimates, value

    def validate(self, arrays: Arrays, key: Key, pool: PyTree) -> dict[str, Array]:
        """Loss, MSE and squared bias, with standard errors, on what training never sees."""
        return self.source.judge(lambda x: self.estimate(arrays, x), self.loss, key, pool)


def robust_share(progress: Array, settings: ScheduleSettings) -> Array:
    """Of the robust loss, at a fraction of training."""
    return jnp.clip((settings.robust - progress) / settings.robust_fades + 1, 0.0, 1.0)


def robust_scale(progress: Array, settings: ScheduleSettings) -> Array:
    """Of the robust loss, at a fraction of training; grows by equal factors."""
    first, last = settings.robust_scales
    share = jnp.clip(progress / max(settings.robust, 1e-6), 0.0, 1.0)
    return first * (last / first) ** share


def check_optimizer(optimizer: Any) -> None:
    """Refuse what is no optimizer, learning rate, or None for the default."""
    if optimizer is None or isinstance(optimizer, optax.GradientTransformation):
        return
    try:
        rate = float(optimizer)
    except (TypeError, ValueError) as error:
        raise TypeError(
            "optimizer must be an Optax optimizer, such as optax.adam(1e-3), or a learning rate, "
            f"got {optimizer!r}"
        ) from error
    if not rate > 0:
        raise ValueError(f"optimizer, as a learning rate, must be positive, got {rate}")


def default_optimizer(
    steps: int, peak: float, settings: ScheduleSettings, *, staged: bool = False
) -> optax.GradientTransformation:
    """Adam, warmed up over the first share of training, then a cosine decay to zero.

    With stages there are two decays: to a small rate while the loss is robust, then to zero. At a
    large rate the noise of the penalty would undo what was learned.
    """
    warmup = max(1, int(settings.warm_up * steps))
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, max(steps, warmup + 1))
    if staged:
        first, low = max(round(settings.robust * steps), warmup + 1), settings.fine_rate * peak
        rest = optax.cosine_decay_schedule(low, max(steps - first, 1))
        robust = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, first, low)
        schedule = optax.join_schedules([robust, rest], [first])
    return optax.adam(schedule)


def _baseline(prepared: PyTree) -> Float[Array, "n m d"] | None:
    """Estimates that are known to be unbiased, if the network is built on such."""
    return prepared.baseline if isinstance(prepared, OnBaseline) else None


def _all_finite(tree: PyTree) -> Array:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]).all()
