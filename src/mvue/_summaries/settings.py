"""Which summary statistics there are, and how the layout of a measurement is told."""

import dataclasses

from .._serialise.registry import register
from .._serialise.settings import Settings, setting


@dataclasses.dataclass(frozen=True, repr=False)
class ExchangeabilitySettings(Settings):
    """The test whether the order of measured numbers matters."""

    most_elements: int = setting(192, least=4)
    """Elements that are compared with each other: of larger sets a run of neighbours and others."""
    largest_element: int = setting(64)
    """Numbers of one element."""
    most_parts: int = setting(12, least=2)
    """Components of elements, and their sizes, whose pairs are compared; of more, some."""
    lags: int = setting(4)
    """Distances at which elements are neighbours."""
    numbers: int = setting(2**23)
    """That are compared with their neighbours; more elements in fewer draws."""
    coordinates: int = setting(256)
    """Coordinates of theta along which elements may change; of more, random mixtures of all."""
    directions: int = setting(16)
    """The same for pairs of elements, which take more time."""
    companions: int = setting(64, least=0)
    """Other numbers of the measurement with which elements may go together."""
    operations: int = setting(2**32)
    """Of the products of pairs; more elements are looked at in fewer draws."""
    fewest_draws: int = setting(512, least=2)
    """However many elements there are."""
    tail: float = setting(20.0)
    """Minus the logarithm of the probability that chance looks like an order."""


@register(name="mvue.SummariesSettings", check=lambda loaded: loaded.__post_init__())
@dataclasses.dataclass(frozen=True, repr=False)
class SummariesSettings(Settings):
    """Which summary statistics of a measurement there are."""

    natural: bool = setting(True)
    """Statistics given by hand whose sums are estimates themselves (one over the mean, ratios,
    inverses, products, the mean in units of the noise), for the baseline. Without them the
    baseline and the network have means, moments, sorted values and logarithms."""
    largest_sorted: int = setting(32, least=2, most=1024)
    """Sorted values of a set of scalars; larger sets are seen by so many quantiles."""
    fewest_ordered: int = setting(8, least=2)
    """Numbers along an axis for it to be a series or a side of an image; fewer are a vector."""
    most_channels: int = setting(4, least=0)
    """Numbers along an axis that are channels rather than an order of their own."""
    largest_raw: int = setting(256, least=1)
    """Numbers of an ordered measurement that are seen as they are. Of larger ones only the
    components that change with theta on average are: the signal subspace of a pilot."""
    components: int = setting(128, least=1)
    """At most so many of these."""
    lags: int = setting(12, least=0, most=1024)
    """Of a series, up to which lag products of neighbours are statistics: for Gaussian series the
    score is linear in them."""
    size_lags: int = setting(4, least=0, most=1024)
    """The same for absolute values, which tell how the variance of a series changes."""
    grid_lags: int = setting(4, least=0, most=64)
    """Of an image, the same along both axes."""
    largest_lagged: int = setting(1024)
    """Numbers of a series or image with all of these lags; larger ones have half of them, and
    spectra or powers of two besides."""
    fewest_spectrum: int = setting(64, least=8)
    """Samples of a series whose power spectrum, in bands, is a statistic: in the approximation of
    Whittle the score is linear in it."""
    bands: int = setting(24, most=128)
    """Of the spectrum: so many of equal ratios, and so many of equal widths."""
    marginal_quantiles: int = setting(9, least=2, most=1024)
    """Of the numbers of a series or image, for what is not Gaussian."""
    offset: float = setting(8.0)
    """Standard deviations from zero at which a measurement lies far off: its distance to the
    typical value is what is seen."""
    largest_quadratic: int = setting(24, least=0, most=512)
    """Numbers of x of which all products are statistics."""
    largest_quartic: int = setting(3, least=0, most=64)
    """Components of set elements of which products of products are statistics."""
    largest_inverse: int = setting(8, least=0, most=512)
    """The same for inverses, and for all that is about the mean."""
    largest_parts: int = setting(4, least=0, most=64)
    """Sets of scalars of whose statistics products are statistics."""
    fewest_axes: int = setting(3)
    """Components of set elements with powers along principal directions: of two there are all."""
    largest_axes: int = setting(64, least=0)
    """Beyond that, the directions of a pilot are noise."""
    largest_pairs: int = setting(40, most=512)
    """Components of set elements, of which all products are statistics."""
    fewest_inverse: int = setting(6, least=2)
    """Numbers of whose variance the inverse is a statistic: of fewer it has no variance."""
    least_noise: float = setting(0.01)
    """Of that of the quietest measurement seen; what is less may be rounding."""
    relative_floor: float = setting(1e-6)
    """Of the typical size of x: logarithms see nothing smaller."""
