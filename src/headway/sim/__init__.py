"""The simulator: an event loop, instances with KV caches, and the signals that they report to the router."""
