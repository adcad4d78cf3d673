"""What every experiment writes of an estimator in results.json."""

CONTRACT = {
    "max_bias_over_sd",
    "max_relative_bias",
    "mse_over_crb",
    "train_seconds",
    "estimate_microseconds",
    *("y", "bias", "bias_se", "sd", "mse", "mse_se", "crb"),
}
