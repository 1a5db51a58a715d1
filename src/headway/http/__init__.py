"""HTTP/1.1 for everything that speaks it: clients' connections, connections to engines, addresses and replies."""
