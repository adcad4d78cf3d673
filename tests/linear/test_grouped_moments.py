import copy
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from mvue._data.units import group_rows
from mvue._linear.grouped_moments import GroupedMoments, MomentSummary
from mvue._linear.totals import BLOCK_ROWS
from mvue._runtime.threads import worker_count


@pytest.fixture(autouse=True, scope="module")
def two_threads():
    """As on a machine with two cores, where each sums a share of the rows."""
    with threadpool_limits(limits=2, user_api="blas"):
        assert worker_count() == 2
        yield


def direct_moments(x, y, units, weights=None):
    """The definition, in plain loops over units."""
    w = np.ones(len(x)) if weights is None else weights
    n = w.sum()
    mean_x, mean_y = w @ x / n, w @ y / n
    dx, dy = x - mean_x, y - mean_y
    between = np.zeros((x.shape[1], x.shape[1]))
    for unit in np.unique(units):
        rows = units == unit
        mean = w[rows] @ dx[rows] / w[rows].sum()
        between += w[rows].sum() * np.outer(mean, mean)
    return MomentSummary(
        n,
        len(np.unique(units)),
        mean_x,
        mean_y,
        (w[:, None] * dx).T @ dx,
        between,
        (w[:, None] * dx).T @ dy,
        (w[:, None] * dy).T @ dy,
    )


def assert_same(a, b, tolerance=1e-10):
    assert a.units == b.units
    for name, scale in (("scatter_xx", a.scatter_xx), ("between_xx", a.scatter_xx)):
        np.testing.assert_allclose(
            getattr(a, name), getattr(b, name), rtol=0, atol=tolerance * np.abs(scale).max()
        )
    for name in ("weight", "mean_x", "mean_y", "scatter_xy", "scatter_yy"):
        value = getattr(a, name)
        np.testing.assert_allclose(
            value, getattr(b, name), rtol=tolerance, atol=tolerance * np.abs(value).max()
        )


def sample(seed, rows=400, units=50, p=4, d=2, offset=0.0):
    rng = np.random.default_rng(seed)
    unit = rng.integers(0, units, rows)
    y = rng.normal(size=(units, d))[unit]
    x = y @ rng.normal(size=(d, p)) + rng.normal(size=(rows, p)) + offset
    return x, y, unit, rng.uniform(0.5, 2.0, rows)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("by_ids", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1e7])
def test_equals_the_definition(seed, weighted, by_ids, offset):
    x, y, unit, weights = sample(seed, offset=offset)
    weights = weights if weighted else None
    moments = GroupedMoments()
    moments.add(x, y, unit_ids=unit if by_ids else None, weights=weights)
    # Rounding of x itself is eps · offset, that of products eps · offset · spread.
    assert_same(moments.summary(), direct_moments(x, y, unit, weights), 1e-10 if offset else 1e-13)


def test_many_blocks_equal_the_definition(seed):
    x, y, unit, weights = sample(seed, rows=3 * BLOCK_ROWS + 7, units=700)
    moments = GroupedMoments()
    moments.add(x, y, weights=weights)
    assert_same(moments.summary(), direct_moments(x, y, unit, weights), 1e-12)


def test_a_unit_larger_than_a_block(seed):
    x, _, unit, _ = sample(seed, rows=2 * BLOCK_ROWS, units=2)
    unit[:] = np.arange(len(unit)) >= BLOCK_ROWS + 1000
    moments = GroupedMoments()
    moments.add(x, unit[:, None].astype(float))
    assert_same(moments.summary(), direct_moments(x, unit[:, None].astype(float), unit), 1e-12)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    pieces=st.integers(1, 9),
    accumulators=st.integers(1, 4),
    p=st.integers(1, 5),
    by_ids=st.booleans(),
)
def test_pieces_permutation_and_merging_change_nothing(seed, pieces, accumulators, p, by_ids):
    x, y, unit, weights = sample(seed, rows=120, units=15, p=p, offset=100.0)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(x))
    parts = [GroupedMoments() for _ in range(accumulators)]
    for piece in np.array_split(order, pieces):
        ids = unit[piece] if by_ids else None
        rng.choice(parts).add(x[piece], y[piece], unit_ids=ids, weights=weights[piece])
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part)
    assert_same(merged.summary(), direct_moments(x, y, unit, weights))


@pytest.mark.parametrize("merge_order", [(0, 1, 2), (0, 2, 1), (2, 1, 0), (1, 0, 2)])
def test_shards_of_a_sorted_table_need_one_open_unit(seed, merge_order):
    x, y, unit, weights = sample(seed)
    order = np.argsort(unit, kind="stable")
    shards = [GroupedMoments(max_open_units=1) for _ in range(3)]
    # Borders inside units, of shards and of pieces alike.
    for shard, rows in zip(shards, np.split(order, [133, 271]), strict=True):
        for i in range(0, len(rows), 11):
            piece = rows[i : i + 11]
            shard.add(x[piece], y[piece], weights=weights[piece])
    a, b, c = (shards[i] for i in merge_order)
    assert_same(a.merge(b).merge(c).summary(), direct_moments(x, y, unit, weights))
    assert_same(a.merge(b.merge(c)).summary(), direct_moments(x, y, unit, weights))


def test_merging_leaves_both_alone(seed):
    x, y, _, _ = sample(seed)
    a, b = GroupedMoments(), GroupedMoments()
    a.add(x[:200], y[:200])
    b.add(x[200:], y[200:])
    before = [copy.deepcopy(m.summary()) for m in (a, b)]
    a.merge(b).add(x, y)
    for moments, summary in zip((a, b), before, strict=True):
        assert_same(moments.summary(), summary, 0)


def test_merging_with_an_empty_accumulator(seed):
    x, y, _, _ = sample(seed)
    full = GroupedMoments()
    full.add(x, y)
    for merged in (full.merge(GroupedMoments()), GroupedMoments().merge(full)):
        assert_same(merged.summary(), full.summary(), 0)


def test_complete_units_equal_rows(seed):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(300, 5, 3)) + 5, rng.normal(size=(300, 2))
    rows, units, pieces = GroupedMoments(), GroupedMoments(), GroupedMoments()
    rows.add(x.reshape(-1, 3), np.repeat(y, 5, axis=0))
    units.add_units(x, y)
    pieces.add_units(x[:100], y[:100])
    pieces = pieces.merge(of_units(x[100:], y[100:]))
    assert_same(units.summary(), rows.summary(), 1e-12)
    assert_same(pieces.summary(), rows.summary(), 1e-12)


def of_units(x, y):
    moments = GroupedMoments()
    moments.add_units(x, y)
    return moments


def test_summaries_of_disjoint_units_merge(seed):
    x, y, unit, _ = sample(seed)
    left = unit < 20
    a, b = GroupedMoments(), GroupedMoments()
    a.add(x[left], y[left])
    b.add(x[~left], y[~left])
    assert_same(a.summary().merge(b.summary()), direct_moments(x, y, unit), 1e-12)


def test_a_late_row_is_an_error_and_changes_nothing(seed):
    x, y, unit, _ = sample(seed)
    order = np.argsort(unit, kind="stable")
    x, y, unit = x[order], y[order], unit[order]
    moments = GroupedMoments(max_open_units=2)
    moments.add(x, y)
    before = moments.summary()
    late = unit == 25
    with pytest.raises(ValueError, match="got rows of 1 units that were folded away"):
        moments.add(x[late], y[late])
    with pytest.raises(ValueError, match="max_open_units"):
        moments.merge(moments.copy())
    assert_same(moments.summary(), before, 0)


def test_refused_rows_leave_no_trace(seed):
    x, y, _, _ = sample(seed)
    moments = GroupedMoments()
    moments.add(x, y)
    before = moments.summary()
    bad = x.copy()
    bad[7, 2] = np.nan
    with pytest.raises(ValueError, match=r"NaN, infinity or a value too large.*column 2"):
        moments.add(bad, y)
    assert_same(moments.summary(), before, 0)


def test_memory_does_not_grow_with_the_rows():
    rng = np.random.default_rng(0)
    moments = GroupedMoments(max_open_units=50)
    held = []
    tracemalloc.start()
    for i in range(30):
        x, y = rng.normal(size=(2000, 20)), np.repeat(rng.normal(size=400), 5)[:, None]
        moments.add(x, y)
        del x, y
        if i in (9, 29):
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    # 8000 units came in between: their sums would take 1.3 MB, their fingerprints take 64 kB.
    assert held[1] - held[0] < 100_000


def test_equal_rows_of_y_are_one_unit_wherever_they_are():
    y = np.array([[1.0, 0.0], [2.0, 0.0], [1.0, -0.0], [1.0, 1e-300], [2.0, 0.0]])
    rows = group_rows(y)
    assert len(rows.y) == 3
    assert rows.order.tolist() == [0, 2, 1, 4, 3]
    assert rows.starts.tolist() == [0, 2, 4, 5]


@pytest.mark.parametrize(
    "ids",
    [
        [3, 3, 1, 3],
        [3.0, 3.0, 1.0, 3.0],
        ["b", "b", "long name", "b"],
        np.array(["b", "b", 1, "b"], object),
    ],
)
def test_kinds_of_ids(ids):
    rows = group_rows(np.array([[0.5], [0.5], [0.25], [0.5]]), ids)
    assert rows.order.tolist() == [0, 1, 3, 2]


def test_ids_mean_the_same_in_every_piece():
    y = np.zeros((1, 1))
    keys = [group_rows(y, ids).keys[0] for ids in (np.array([3]), [3.0], np.array([3], np.uint8))]
    assert len(set(keys)) == 1
    assert group_rows(y, ["ab"]).keys[0] == group_rows(np.zeros((2, 1)), ["abc", "ab"]).keys[1]


def test_bad_ids():
    y = np.zeros((2, 1))
    with pytest.raises(ValueError, match=r"shape \(2,\), got \(3,\)"):
        group_rows(y, [1, 2, 3])
    with pytest.raises(ValueError, match="unit_ids must be finite"):
        group_rows(y, [1.0, np.nan])
    with pytest.raises(ValueError, match="integers or strings"):
        group_rows(y, [1j, 2j])
    with pytest.raises(ValueError, match="y must be the same in all rows of a unit, got 1 rows"):
        group_rows(np.array([[1.0], [2.0]]), [7, 7])


def test_a_unit_whose_y_differs_between_pieces():
    moments = GroupedMoments()
    moments.add(np.ones((2, 1)), np.array([[1.0], [2.0]]), unit_ids=[1, 2])
    with pytest.raises(ValueError, match="differs between two pieces"):
        moments.add(np.ones((1, 1)), np.array([[3.0]]), unit_ids=[1])
    assert moments.summary().weight == 2


def test_pieces_must_be_alike():
    moments = GroupedMoments()
    with pytest.raises(ValueError, match="at least one row"):
        moments.summary()
    moments.add(np.eye(3), np.arange(3.0)[:, None])
    with pytest.raises(ValueError, match="with every piece of the data or with none"):
        moments.add(np.eye(3), np.arange(3.0)[:, None], unit_ids=[1, 2, 3])
    with pytest.raises(ValueError, match="x must have 3 columns as in the pieces before, got 2"):
        moments.add(np.eye(2), np.arange(2.0)[:, None])
    other = GroupedMoments()
    other.add(np.eye(2), np.arange(2.0)[:, None])
    with pytest.raises(ValueError, match=r"got \(3, 1\) and \(2, 1\)"):
        moments.merge(other)
    by_ids = GroupedMoments()
    by_ids.add(np.eye(3), np.arange(3.0)[:, None], unit_ids=[1, 2, 3])
    with pytest.raises(ValueError, match="group rows alike"):
        moments.merge(by_ids)
