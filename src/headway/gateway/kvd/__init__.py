"""The KV-block daemon: stores blocks by key in memory and on disk, for the engines of a node and for other nodes.

    channel (a byte stream: unix, quic) -> session (one request after another) -> store (RAM, then disk)

A key is 1 to 64 bytes. The daemon does not interpret keys or blocks.
"""
