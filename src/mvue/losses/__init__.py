"""Losses: pure functions of arrays, and objectives that `mvue.fit` minimises.

The functions take NumPy, JAX or PyTorch arrays; the objectives bind them to their settings.
"""

from ._functions import bce_loss as bce_loss
from ._functions import bias_reduced_loss as bias_reduced_loss
from ._functions import effective_bias_weight as effective_bias_weight
from ._functions import emmse_loss as emmse_loss
from ._functions import fisher_mse_loss as fisher_mse_loss
from ._functions import relative_mse_loss as relative_mse_loss
from ._functions import squared_bias as squared_bias
from ._loss import Loss as Loss
from ._objectives import bce as bce
from ._objectives import bias_reduced as bias_reduced
from ._objectives import emmse as emmse
from ._objectives import fisher_mse as fisher_mse
from ._objectives import geometric_schedule as geometric_schedule
from ._objectives import relative_mse as relative_mse
