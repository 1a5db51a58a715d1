"""The sources of engines: the gateway's file, and etcd with the agents that register there."""
