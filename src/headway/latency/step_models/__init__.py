"""The latency models, one per file. `MODEL` in each file declares the name, the keys and the constructor."""
