"""What a policy may see of instances and pools."""
