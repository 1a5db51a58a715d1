"""What arrives: synthetic requests or a trace's, planned one after the other in order of arrival."""
