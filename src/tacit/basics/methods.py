"""Methods of inference, declared once: the names that users choose them by and their descriptions in reports."""

METHODS = {
    "natural": "natural-gradient variational inference with curvature released seldom",
    "vi": "variational inference by noised gradients",
    "ep": "expectation propagation",
    "sep": "stochastic expectation propagation",
    "sgld": "stochastic-gradient Langevin dynamics",
}
