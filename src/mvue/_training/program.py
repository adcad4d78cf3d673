"""The compiled program of training: simulate, estimate, update and validate.

Everything here is traced once per fit. Random numbers depend on the key of the run and the number
of the step alone.
"""

import copy
import math
from collections.abc import Callable, Hashable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from .._core.problem import Draw
from .._core.sampling import Batches, Simulations
from .._core.types import Estimator, Key
from .._default.excess import ExcessSums
from .._default.scoring import Places, robust_loss, robust_share
from .._recipe.efficient import EfficientError
from .._recipe.settings import ScheduleSettings
from .._recipe.training_prior import TrainingPrior
from .._runtime.devices import mapped
from .._runtime.jit import as_array, jit
from ..losses._loss import Loss
from ..losses._objectives import BiasConstrained, OfTheta
from ..nn._frozen import trainable
from ..nn._staged import finish, prepare
from .batches import (
    Batch,
    BatchSource,
    DataBatches,
    SimulatedBatches,
    baseline_of,
)
from .control_variate import Anchor, BiasSums, Control
from .state import Arrays, State, Sums, default_optimizer

Keep = Literal["average", "best", "last"]


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
        uses: int = 1,
    ) -> None:
        self.settings, self.uses = settings or ScheduleSettings(), uses
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
        self.simulations = self._simulations()

    def _simulations(self) -> Simulations | None:
        """Batches that are simulated before the steps that use them.

        None for data. Where devices share a batch, each simulates its own part in the step.
        """
        source = self.source
        if not isinstance(source, SimulatedBatches) or source.mesh is not None:
            return None
        return Simulations(
            source.problem,
            source.batch_size,
            source.repeats,
            lambda constants, x: prepare(self.estimator(self._untrained(constants)), x),
            noise=self.efficient_error,
            keeps_x=not isinstance(self.loss, BiasConstrained),
            constants=self.arrays.constants,
        )

    def _untrained(self, constants: PyTree) -> Arrays:
        """What the first stage of a network needs."""
        return Arrays(jax.tree.map(lambda _: None, self.arrays.params), constants)

    def batch(self, key: Key, number: Int[Array, ""], constants: PyTree, pool: PyTree) -> Batch:
        """A batch by its number."""
        if self.simulations is not None:
            assert isinstance(pool, Batches)
            # Pools begin at multiples of their size.
            return Batch.of_units(*pool.at(number % pool.finite.shape[0]))
        draw, bad = self.source.draw(jr.fold_in(key, number), pool)
        prepared = self.prepare(self._untrained(constants), draw.x)
        return Batch(draw, prepared, self.efficient_errors(draw), bad)

    def initial_state(self) -> State:
        # Copies, so that the compiled program never sees one buffer under two names.
        params, average, best, anchor = (
            jax.tree.map(lambda leaf: as_array(leaf, leaf.dtype), self.arrays.params)
            for _ in range(4)
        )
        return State(
            step=as_array(0, int),
            params=params,
            average=average,
            best=best,
            opt_state=jit(self.optimizer.init)(params),
            sums=Sums.zero(),
            nonfinite=as_array(0, int),
            diverged=as_array(False, bool),
            anchor=None if self.control is None else self.control.first(anchor, self.d),
            excess=None if self.places is None else self._no_excess(),
            loss_unit=as_array(1.0),
        )

    def _no_excess(self) -> Array:
        assert self.places is not None
        return as_array(np.zeros((self.places.excess.size(len(self.places.unit)), self.d)))

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
        program.simulations = program._simulations()
        return program

    def noise(
        self, anchor: Anchor | None, batch: Batch, constants: PyTree
    ) -> Float[Array, "n m d"] | None:
        """Noise of the estimates that is known besides the efficient errors; None if none is."""
        if self.control is None or anchor is None:
            return None
        estimates = self.finish(Arrays(anchor.params, constants), batch.prepared)
        baseline = baseline_of(batch.prepared)
        if batch.efficient is not None:
            estimates = estimates - batch.efficient
            baseline = None if baseline is None else baseline - batch.efficient
        return self.control.noise(anchor, estimates, batch.draw, baseline)

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

    def measure(
        self,
        sums: BiasSums,
        params: PyTree,
        numbers: tuple[Array, Array],
        key: Key,
        constants: PyTree,
        pool: PyTree,
    ) -> BiasSums:
        """What an anchor with these weights is made from, with batches of some numbers added."""
        control, arrays = self.control, Arrays(params, constants)
        assert control is not None

        def add(i: Array, sums: BiasSums) -> BiasSums:
            batch = self.batch(key, i, constants, pool)
            reference = baseline_of(batch.prepared)
            if reference is None:
                reference = batch.draw.y[:, None, :]
                if batch.efficient is not None:
                    reference = reference + batch.efficient
            errors = self.finish(arrays, batch.prepared) - reference
            return jax.tree.map(jnp.add, sums, control.sums(errors, batch.draw))

        return jax.lax.fori_loop(*numbers, add, sums)

    @property
    def measured_batches(self) -> int:
        """How many an anchor is made from."""
        assert self.control is not None
        penalised = self.steps - self.first_penalised
        return self._fewer(self.control.features.settings.share * penalised)

    @property
    def excess_batches(self) -> int:
        """How many tell where errors are larger than expected."""
        return self._fewer(self.settings.excess_batches)

    def _fewer(self, batches: float) -> int:
        """Where simulations are slow, fewer batches; all that are simulated at a time are used."""
        count = self.simulations.count if self.simulations and self.uses > 1 else 1
        return max(count, count * round(batches / (self.uses * count)))

    def no_excess_sums(self) -> ExcessSums:
        """Sums over nothing."""
        assert self.places is not None
        size = self.places.excess.size(len(self.places.unit))
        return ExcessSums(*(as_array(np.zeros((size, n))) for n in (size, self.d)))

    def measure_excess(
        self,
        sums: ExcessSums,
        params: PyTree,
        numbers: tuple[Array, Array],
        key: Key,
        constants: PyTree,
        pool: PyTree,
    ) -> ExcessSums:
        """What tells where the errors of these weights are larger than expected."""
        places, loss = self.places, self.loss
        assert places is not None
        assert isinstance(loss, BiasConstrained)
        arrays = Arrays(params, constants)

        def add(i: Array, sums: ExcessSums) -> ExcessSums:
            batch = self.batch(key, i, constants, pool)
            draw = batch.draw
            estimates = self.finish(arrays, batch.prepared)
            unit = jnp.sqrt(loss.weights(draw))[:, None, :]
            at = jax.vmap(places.of)(draw.theta, draw.y)
            found = places.excess.sums(at, (estimates - draw.y[:, None, :]) * unit)
            return jax.tree.map(jnp.add, sums, found)

        return jax.lax.fori_loop(*numbers, add, sums)

    @property
    def undefined(self) -> float:
        """Share of units at whose theta the simulator is known to be undefined."""
        prior = self.source.problem.prior if isinstance(self.source, SimulatedBatches) else None
        return prior.undefined if isinstance(prior, TrainingPrior) else 0.0

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
            return done + 1, self.step(state, key, constants, pool)

        return jax.lax.while_loop(wanted, body, (jnp.asarray(0), state))[1]

    def step(self, state: State, key: Key, constants: PyTree, pool: PyTree) -> State:
        if self.uses == 1:
            batch = self.batch(key, state.step, constants, pool)
        else:
            batch = Batch.of_units(*pool.drawn(jr.fold_in(key, state.step)))
        bad = batch.bad
        if self.places is None:
            value, estimates, grads = self.gradient(state, batch, constants)
        else:
            # While the loss is robust, neither the penalty nor its control variate is needed.
            branches = self.gradient, self.robust_gradient
            penalised = state.step >= self.first_penalised
            value, estimates, grads = jax.lax.cond(penalised, *branches, state, batch, constants)
        updates, opt_state = self.optimizer.update(
            grads, state.opt_state, state.params, value=value
        )
        params = optax.apply_updates(state.params, updates)
        share = jnp.maximum(1 / (state.step + 1), 1 / (1 + self.settings.averaged * self.steps))
        average = optax.incremental_update(params, state.average, share)
        mse, bias2 = self.source.moments(estimates, batch.draw)
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
        self, state: State, batch: Batch, constants: PyTree
    ) -> tuple[Array, Array, PyTree]:
        """The loss of a batch, its estimates, and the gradient that training follows."""
        progress = state.step / self.steps
        draw, prepared, efficient, _ = batch
        noise = self.noise(state.anchor, batch, constants)
        loss = self.loss_of(state)

        def objective(params: PyTree) -> tuple[Array, tuple[Array, Array]]:
            arrays, robust = Arrays(params, constants), None
            if self.places is None:
                estimates = self.finish(arrays, prepared)
            else:
                estimates, robust = self.staged(arrays, batch, progress)
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
        self, state: State, batch: Batch, constants: PyTree
    ) -> tuple[Array, Array, PyTree]:
        """The same while the loss is robust."""
        progress = state.step / self.steps

        def objective(params: PyTree) -> tuple[Array, Array]:
            arrays = Arrays(params, constants)
            estimates, robust = self.staged(arrays, batch, progress)
            return robust, estimates

        (robust, estimates), grads = jax.value_and_grad(objective, has_aux=True)(state.params)
        return robust, estimates, grads

    def staged(
        self, arrays: Arrays, batch: Batch, progress: Array
    ) -> tuple[Float[Array, "n m d"], Array]:
        """Estimates of a network with stages, and the robust loss of all its states."""
        places, draw = self.places, batch.draw
        assert places is not None
        states = self._map(lambda network, one: network.states(one), arrays, batch.prepared)
        last = states[:, :, -1, :]
        estimates = self._map(lambda network, one: network.in_units(one), arrays, last)
        wanted = jax.vmap(places.of)(draw.theta, draw.y)[:, None, None, :]
        errors = (states - wanted) / jnp.asarray(places.unit)[None, None, None, :]
        if batch.efficient is not None and isinstance(self.loss, BiasConstrained):
            known = batch.efficient * jnp.sqrt(self.loss.weights(draw))[:, None, :]
            errors = errors.at[..., : self.d].add(-known[:, :, None, :])
        return estimates, robust_loss(errors, self.d, progress, self.settings)

    def validate(self, arrays: Arrays, key: Key, pool: PyTree) -> dict[str, Array]:
        """Loss, MSE and squared bias, with standard errors, on what training never sees."""
        source = self.source
        if isinstance(source, DataBatches):
            return source.judge(lambda x: self.estimate(arrays, x), self.loss, pool)
        assert isinstance(source, SimulatedBatches)

        def estimated(i: Array) -> tuple[Draw, Array]:
            batch = self.batch(key, i, arrays.constants, pool)
            return batch.draw, self.finish(arrays, batch.prepared)

        return source.judge(estimated, self.loss)


def _all_finite(tree: PyTree) -> Array:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]).all()
