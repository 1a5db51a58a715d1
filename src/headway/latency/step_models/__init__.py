"""The latency models, a file each. `MODEL` at the end of a file says its name, its keys and how to build it."""
