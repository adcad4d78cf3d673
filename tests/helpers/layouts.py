"""Statistics of measurements whose layout is known."""

import jax

import mvue
from mvue._summaries.joint import choose_statistics
from mvue._summaries.layout import Layout, Part


def statistics_for(x, sets=(), kind="vector", channels=None, settings=None, own=()):
    """Of measurements with a leading axis: some arrays are sets, the others of one kind."""
    # Two repeats of each unit where there are so many.
    count = len(jax.tree.leaves(x)[0])
    repeats = 2 if count % 2 == 0 else 1
    x = jax.tree.map(lambda leaf: leaf.reshape(count // repeats, repeats, *leaf.shape[1:]), x)
    rest = [i for i in range(len(jax.tree.leaves(x))) if not any(i in group for group in sets)]
    ordered = [tuple(rest)] if kind == "vector" and rest else [(i,) for i in rest]
    parts = [Part("set", group, 0) for group in sets]
    parts += [Part(kind, group, channels) for group in ordered]
    return choose_statistics(
        x, Layout(tuple(parts), True), settings or mvue.Recipe().summaries, own
    )
