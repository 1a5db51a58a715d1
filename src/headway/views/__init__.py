"""The views: what a policy may see of requests' targets, tenants and pools."""
