"""The simulator: an event loop, instances with KV caches, and what the router is told of them."""
