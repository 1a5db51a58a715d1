"""The views: the information about instances, tenants and pools that a policy may read."""
