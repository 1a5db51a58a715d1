"""The KV-block daemon: blocks by key in memory and on disk, for the engines of a node and between nodes.

    channel (a stream of bytes: unix, quic) -> session (one request after another) -> store (RAM, then disk)

Keys are opaque bytes, at most 64 of them; whoever puts a block says what its key stands for.
"""
