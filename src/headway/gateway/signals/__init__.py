"""The load and the caches of engines, as the engines and their agents report them."""
