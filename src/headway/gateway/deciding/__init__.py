"""Who decides in a live gateway: the policies in force, a candidate for a share, and those that stand by."""
