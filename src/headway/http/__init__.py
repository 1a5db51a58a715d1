"""HTTP/1.1 for all parts of Headway: connections of clients, connections to engines, addresses and replies."""
