"""The policies that decide in a live gateway: the policies in force, a canary, and fallbacks after failures."""
