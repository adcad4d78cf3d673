"""What tests share: small models, quick training, workers, the run-time type checker."""

from . import strict as strict  # jaxtyping finds it as an attribute
