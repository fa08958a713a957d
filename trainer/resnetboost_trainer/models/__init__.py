"""Networks: architecture, layers, initialization and weight names. Contains no training or communication code."""
