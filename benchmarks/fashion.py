"""Does sharpness rank networks by how they generalize, once the whole orbit is divided out?

    SPIRITLEVEL_DATA=... spiritlevel study run benchmarks/fashion.py --engine pool --workers 16

576 networks, trained on 2,000 images of Fashion-MNIST to a training loss of 0.05 in stacks of one
architecture. docs/study.md says what came out; docs/fashion.csv holds all numbers.
"""

from __future__ import annotations

from spiritlevel.studies import Study, recipes

PLAIN = (
    *("hessian_spectral", "hessian_trace", "hessian_frobenius", "keskar", "eps_sharpness"),
    *("expected_sharpness", "pac_bayes_flatness", "parameter_norm", "log_spectral_product"),
    "log_frobenius_product",
)
INVARIANT = (
    *("orbit_spectral", "orbit_trace", "layer_minimum", "balanced_sharpness"),
    *("adaptive_spectral", "adaptive_average", "adaptive_box", "normalized_sharpness"),
    *("relative_flatness", "frobenius_spectral"),
    *("pac_bayes_magnitude_flatness", "fisher_rao", "path_norm", "path_norm_over_margin"),
)
OTHER = (
    *("loss", "gradient_norm", "gradient_noise_scale", "margin", "output_entropy"),
    *("parameter_count", "frobenius_distance", "pac_bayes_init", "pac_bayes_orig"),
)

VARIED = {
    "depth": [2, 3],
    "batch": [32, 256],
    "optimizer": ["sgd", "adam"],
    "times": [0.1, 0.3],  # the optimizer's own rate: 0.1 of SGD with momentum, 0.01 of Adam
    "labels": [0.0, 0.1],
}
FIXED = {"data": "fashion", "examples": 2000, "stop": 0.05, "epochs": 1500}

study = Study(
    "fashion",
    [
        *recipes.configurations(network="cnn", width=[8, 16, 32], **VARIED, **FIXED),
        *recipes.configurations(network="mlp", width=[32, 64, 128], **VARIED, **FIXED),
    ],
    recipes.train,
    [*PLAIN, *INVARIANT, *OTHER],
    seeds=3,
    outcome="gap",
    representative=PLAIN,
    settings={"tol": 1e-2, "rtol": 0.05, "compile": False},
    together=recipes.together,
    train_many=recipes.train_many,
    stack=6,
    controls=("train_loss", "times", "batch", "width"),
)
