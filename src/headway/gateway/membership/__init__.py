"""Where the engines are named: the file, etcd, and the agents beside them."""
