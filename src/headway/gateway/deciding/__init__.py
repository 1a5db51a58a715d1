"""The policies that decide in a live gateway: those in force, a canary, and fallbacks after failures."""
