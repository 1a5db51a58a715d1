"""The latency models, one per file. `MODEL` in each file declares the model's name, keys and constructor."""
